//! Which approvals and undos are being applied, told without the store.
//!
//! A command in a running sandbox is asked of its keeper, and the store is not opened ([`crate::ways`]). Were the project half changed, by
//! somebody who died over it, nobody would finish that before the command sees it. So while an approval or an undo is applied a file
//! of its name stands in `applying`, and who wants a command opens the store first, as everybody else does. It need not outlive
//! a loss of power: no keeper does.

use crate::Engine;
use crate::layout::make_private_in;
use crate::reconcile::directory_names;
use skep_store::StoreError;
use skep_types::{ApprovalId, ApprovalState};
use std::fs;

impl Engine {
    /// Says that it is under way. Its row is there already, or whoever settles everything would take this away. Where it cannot
    /// be said (a full disk), a command may see half of what somebody died over, until any other command has finished it.
    pub(super) fn note_under_way(&self, id: &ApprovalId) {
        let place = self.layout().applying();
        let note =
            || make_private_in(&place).and_then(|()| fs::write(place.join(id.as_str()), b""));
        // Somebody whose own is over may remove the directory in between.
        let _ = (0..3).find_map(|_| note().ok());
    }

    /// Takes the word back of everything that is not under way any more. What the store cannot tell of stays, and costs a look.
    pub(super) fn forget_what_is_over(&self) {
        use ApprovalState::{Applying, Committed};
        let place = self.layout().applying();
        for name in directory_names(&place) {
            let over = match self.store.find_approval(&name) {
                Ok(row) => !matches!(row.state, Applying | Committed),
                Err(error) => matches!(error, StoreError::NotFound { .. }),
            };
            if over {
                let _ = fs::remove_file(place.join(name));
            }
        }
        // One that holds others stays.
        let _ = fs::remove_dir(place);
    }
}
