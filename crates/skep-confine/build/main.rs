//! Compiles `resources/seccomp.toml` into the filter programs the library carries: two for each machine.
//!
//! At build time, so that starting a sandbox parses nothing, and a mistake in the data file is a
//! failed build and not a sandbox without a filter.

mod assembler;
mod compiler;
mod policy;

use policy::{Policy, Variant};
use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let source = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../../resources/seccomp.toml");
    println_directive(&source);
    let policy = Policy::parse(&fs::read_to_string(&source)?)?;
    let mut generated = String::new();
    let programs = [
        ("X86_DEFAULT", Variant::Default, compiler::X86),
        ("X86_DEBUG", Variant::Debug, compiler::X86),
        ("ARM_DEFAULT", Variant::Default, compiler::ARM),
        ("ARM_DEBUG", Variant::Debug, compiler::ARM),
    ];
    for (name, variant, abis) in programs {
        let program = compiler::compile(&policy, variant, abis)?;
        writeln!(generated, "static {name}: [Instruction; {}] = [", program.len())?;
        for step in program {
            let (code, jump_true, jump_false, value) =
                (step.code, step.jump_true, step.jump_false, step.value);
            writeln!(
                generated,
                "    Instruction {{ code: {code:#04x}, jump_true: {jump_true}, jump_false: {jump_false}, value: {value:#x} }},"
            )?;
        }
        writeln!(generated, "];")?;
    }
    let noted = compiler::noted(&policy);
    writeln!(generated, "static NOTED: [(u32, u32, &str); {}] = {noted:?};", noted.len())?;
    fs::write(Path::new(&env::var("OUT_DIR")?).join("seccomp_programs.rs"), generated)?;
    Ok(())
}

/// Standard output of a build script is how it talks to cargo.
#[allow(clippy::print_stdout)]
fn println_directive(source: &Path) {
    println!("cargo::rerun-if-changed={}", source.display());
    println!("cargo::rerun-if-changed=build");
}
