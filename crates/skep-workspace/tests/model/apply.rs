//! Applies a plan with the real apply, and gives what an approval does in one call.

use super::World;
use skep_types::{ApprovalId, Selection};
use skep_workspace::apply::{ApplyRequest, stage};
use skep_workspace::{DeriveOptions, Derived, Plan, derive, plan, settle};

pub fn derived(world: &World) -> Derived {
    derive(&world.spec, &DeriveOptions::default()).unwrap()
}

/// Applies `plan` and settles it, as the `number`th approval of this world.
pub fn apply_plan(world: &World, plan: &Plan, number: u8) {
    let journal = world.dir.path().join(format!("journal{number}"));
    std::fs::create_dir(&journal).unwrap();
    let id = ApprovalId::from_random([number; 10]);
    let request = ApplyRequest {
        id: &id,
        project: &world.spec.project,
        root_identity: (world.spec.base.device, world.spec.base.inode),
        journal_dir: &journal,
        targets: plan.targets.clone(),
        note: serde_json::Value::Null,
        progress: &mut |_| {},
    };
    stage(request).unwrap().publish().unwrap();
    settle(&world.spec, &plan.settlement).unwrap();
}

pub fn approve(world: &World, selection: &Selection, number: u8) -> Plan {
    let plan = plan(&world.spec, &derived(world), selection).unwrap();
    apply_plan(world, &plan, number);
    plan
}
