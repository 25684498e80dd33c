//! A set of named bits, for the few flag types of this crate.

macro_rules! bitflags_lite {
    ($(#[$doc:meta])* pub struct $name:ident: $int:ty { $($(#[$fdoc:meta])* $flag:ident = $value:expr;)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name($int);

        impl $name {
            $($(#[$fdoc])* pub const $flag: Self = Self($value);)*
            /// None of them.
            pub const NONE: Self = Self(0);
            /// The bits.
            pub const fn bits(self) -> $int { self.0 }
            /// Both together.
            #[must_use]
            pub const fn with(self, other: Self) -> Self { Self(self.0 | other.0) }
            /// Whether all of `other` are in.
            pub const fn contains(self, other: Self) -> bool { self.0 & other.0 == other.0 }
        }
    };
}
