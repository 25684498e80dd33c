//! Names for sandboxes that were not given one.

use skep_types::{Problem, SandboxName};

const FIRST: &[&str] = &[
    "amber", "brisk", "calm", "clover", "dusk", "early", "fern", "gentle", "golden", "hazel",
    "heather", "humming", "keen", "linden", "mellow", "misty", "nimble", "quiet", "rapid", "rosy",
    "russet", "sage", "silver", "sunny", "swift", "thyme", "velvet", "warm", "wild", "willow",
];
const SECOND: &[&str] = &[
    "bee", "bloom", "brood", "cell", "comb", "drone", "field", "flight", "flower", "forager",
    "garden", "grove", "hive", "honey", "meadow", "nectar", "orchard", "petal", "pollen", "queen",
    "scout", "skep", "spring", "swarm", "wax", "wing",
];

/// A name from random bytes, such as `amber-comb-7c1`.
pub fn made_up(random: [u8; 10]) -> Result<SandboxName, Problem> {
    let pick = |words: &[&'static str], at: usize| {
        words[(usize::from(random[at]) << 8 | usize::from(random[at + 1])) % words.len()]
    };
    let number = u16::from(random[4]) << 4 | u16::from(random[5] >> 4);
    let text = format!("{}-{}-{number:03x}", pick(FIRST, 0), pick(SECOND, 2));
    SandboxName::parse(&text)
        .map_err(|error| Problem::new(skep_types::Code::Internal, error.to_string()))
}
