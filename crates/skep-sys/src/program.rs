//! A program to become, in the form the kernel takes.

use std::ffi::{CString, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Everything `execve` wants, made before the fork: nothing is allocated after it.
#[derive(Debug)]
pub struct Program {
    candidates: Vec<CString>,
    arguments: Texts,
    environment: Texts,
}

impl Program {
    /// The command is looked for along `path` (the new process's own) unless it has a slash.
    pub fn new<'a>(
        arguments: impl IntoIterator<Item = &'a [u8]>,
        environment: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        path: &[u8],
    ) -> Self {
        let arguments: Vec<CString> = arguments.into_iter().map(text).collect();
        let name = arguments.first().map(|word| word.as_bytes()).unwrap_or_default();
        let candidates = if name.contains(&b'/') {
            vec![text(name)]
        } else {
            let join = |directory: &[u8]| {
                let path = Path::new(OsStr::from_bytes(directory)).join(OsStr::from_bytes(name));
                text(path.as_os_str().as_bytes())
            };
            path.split(|byte| *byte == b':').filter(|part| !part.is_empty()).map(join).collect()
        };
        let pair = |(name, value): (&str, &[u8])| text(&[name.as_bytes(), b"=", value].concat());
        let environment = environment.into_iter().map(pair).collect();
        let (arguments, environment) = (Texts::new(arguments), Texts::new(environment));
        Self { candidates, arguments, environment }
    }

    /// Becomes the program. Returns only if no candidate ran, with the reason; like a shell,
    /// "found but not executable" wins over "not found".
    pub fn run(&self) -> i32 {
        let mut verdict = libc::ENOENT;
        for candidate in &self.candidates {
            let error = execve(candidate, &self.arguments, &self.environment);
            match error.raw_os_error().unwrap_or(libc::EIO) {
                libc::ENOENT | libc::ENOTDIR => {}
                errno => verdict = errno,
            }
        }
        verdict
    }
}

/// Texts as the kernel takes them: an array of pointers, the last of them null.
#[derive(Debug)]
struct Texts {
    pointers: Vec<*const libc::c_char>,
    /// What they point to, which does not move.
    _texts: Vec<CString>,
}

impl Texts {
    fn new(texts: Vec<CString>) -> Self {
        let pointers = texts.iter().map(|text| text.as_ptr()).chain([std::ptr::null()]).collect();
        Self { pointers, _texts: texts }
    }
}

/// Replaces this process by a program. Returns only on failure, with the reason.
fn execve(program: &CString, arguments: &Texts, environment: &Texts) -> io::Error {
    let (arguments, environment) = (arguments.pointers.as_ptr(), environment.pointers.as_ptr());
    // SAFETY: all three are NUL-terminated (the arrays by a null pointer) and live until the call
    // returns, which it does only on failure.
    unsafe { libc::execve(program.as_ptr(), arguments, environment) };
    io::Error::last_os_error()
}

/// A NUL byte cannot be passed; the edges refuse it, and here it would only cut the text.
fn text(bytes: &[u8]) -> CString {
    CString::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default()
}
