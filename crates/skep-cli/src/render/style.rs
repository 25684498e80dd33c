//! Colours: only on a terminal, only around text that was made safe before.

/// Whether and how to colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Style {
    coloured: bool,
}

impl Style {
    /// No colours.
    pub(crate) const PLAIN: Self = Self { coloured: false };

    /// With colours or without.
    pub(crate) fn coloured(coloured: bool) -> Self {
        Self { coloured }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.coloured { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// For headings.
    pub(crate) fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// For removed lines, errors and blocked paths.
    pub(crate) fn red(self, text: &str) -> String {
        self.paint("31", text)
    }

    /// For added lines and what is well.
    pub(crate) fn green(self, text: &str) -> String {
        self.paint("32", text)
    }

    /// For warnings.
    pub(crate) fn yellow(self, text: &str) -> String {
        self.paint("33", text)
    }

    /// For hunk headers and hints.
    pub(crate) fn cyan(self, text: &str) -> String {
        self.paint("36", text)
    }
}
