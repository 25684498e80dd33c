//! The lease of a node: who may write for it.

use super::PostgresStore;
use super::fault::Outcome;
use super::session::Session;
use crate::StoreError;
use std::sync::PoisonError;

/// The server's clock: leases of different machines must not be judged by different clocks.
const NOW: &str = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint";

impl PostgresStore {
    /// Whether the lease is ours and half of its time is over.
    pub(super) fn is_due(&self, session: &mut Session) -> Outcome<bool> {
        let sql = format!(
            "SELECT 1 FROM nodes WHERE node = $1 AND holder = $2 AND expires_us - {NOW} < $3"
        );
        let half = i64::try_from(self.lease.as_micros() / 2).unwrap_or(i64::MAX);
        super::row::exists(session, &sql, &[&self.node, &self.holder, &half])
    }

    /// Proves, inside a transaction that holds the write lock, that this handle may write for its
    /// node, and returns the epoch it writes under. What it changes counts once it is committed.
    ///
    /// 1. Nobody has held the node: it is ours, with epoch 1.
    /// 2. The epoch and the holder are those we know: go on, and renew when half of the time is over.
    /// 3. The holder is ours, the handle is new: the processes of one state directory share a lease
    ///    (its file locks arbitrate among them).
    /// 4. Somebody else holds it and the time is not over: refused.
    /// 5. Somebody else held it and the time is over: taken over, with the next epoch.
    ///
    /// A handle that knew another epoch or holder was taken over: it is fenced off for good.
    pub(super) fn fence(&self, session: &mut Session) -> Outcome<i64> {
        let known = *self.epoch.lock().unwrap_or_else(PoisonError::into_inner);
        let sql = format!(
            "SELECT epoch, holder, expires_us - {NOW} FROM nodes WHERE node = $1 FOR UPDATE"
        );
        let lease_us = i64::try_from(self.lease.as_micros()).unwrap_or(i64::MAX / 4);
        let fenced = |expected: i64, found: i64| StoreError::Fenced {
            node: self.node.clone(),
            expected: expected as u64,
            found: found as u64,
        };
        let Some(row) = session.first(&sql, &[&self.node])? else {
            if let Some(expected) = known {
                return Err(fenced(expected, 0).into());
            }
            let insert = format!(
                "INSERT INTO nodes (node, holder, epoch, expires_us) VALUES ($1, $2, 1, {NOW} + $3)"
            );
            session.execute(&insert, &[&self.node, &self.holder, &lease_us])?;
            return Ok(1);
        };
        let (epoch, holder, left): (i64, String, i64) =
            (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let ours = holder == self.holder;
        if let Some(expected) = known.filter(|known| *known != epoch || !ours) {
            return Err(fenced(expected, epoch).into());
        }
        if !ours && left > 0 {
            let seconds = (left as u64).div_ceil(1_000_000);
            return Err(StoreError::NodeHeld { node: self.node.clone(), seconds }.into());
        }
        let next = if ours { epoch } else { epoch + 1 };
        if !ours || left < lease_us / 2 {
            let update = format!(
                "UPDATE nodes SET holder = $2, epoch = $3, expires_us = {NOW} + $4 WHERE node = $1"
            );
            session.execute(&update, &[&self.node, &self.holder, &next, &lease_us])?;
        }
        Ok(next)
    }
}
