//! Safe wrappers around the system calls skep needs; the only crate with unsafe code.
