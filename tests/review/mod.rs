//! The change set, approval, undo and the crashes in between.
