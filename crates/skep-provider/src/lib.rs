//! The Provider trait: where the processes of a sandbox run.
