//! What skep remembers: the Store trait and its SQLite implementation.
