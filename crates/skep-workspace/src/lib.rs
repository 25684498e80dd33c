//! The copy-on-write workspace: change sets, hunks, merges, and the journaled apply.
