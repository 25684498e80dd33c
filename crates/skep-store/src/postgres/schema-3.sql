-- What was interrupted is looked for at every start, among all that was ever approved.
CREATE INDEX approvals_state ON approvals (node, state, seq);
