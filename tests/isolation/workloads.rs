//! Real work inside a sandbox, compared with the same work outside.

use crate::harness::{Lab, Tree, for_both, skip};
use std::path::{Path, PathBuf};

/// Runs a script in a plain copy of the project and in a sandbox, and compares what it printed and
/// what it left (after approving everything). `flags` are for the sandbox.
fn same_inside(lab: &Lab, flags: &[&str], script: &str, compare: &[&str]) {
    // Not yet there for the sandbox: the plain run happens beside the project, at the same depth.
    let plain = lab.root.join("plaines");
    let copied = lab.program("cp").args(["-a"]).args([&lab.project, &plain]).run();
    copied.ok();
    let home = lab.root.join("plain-home");
    std::fs::create_dir(&home).unwrap();
    lab.who.own(&home);
    let outside = lab
        .program("sh")
        .args(["-ec", script])
        .directory(&plain)
        .env("HOME", &home)
        .within(300)
        .run()
        .ok();
    let inside = lab
        .skep(["run", "--name", "work", "--keep"])
        .args(flags)
        .args(["--", "sh", "-ec", script])
        .within(300)
        .run()
        .ok();
    let clean = |text: &str| text.replace("plaines", "project");
    assert_eq!(clean(&inside.text()), clean(&outside.text()), "{}", inside.describe());
    lab.skep(["approve", "work", "--ignored"]).run();
    for path in compare {
        let (one, other) = (read(&lab.project.join(path)), read(&plain.join(path)));
        one.assert_equals(&other, &format!("{path} inside and outside"));
    }
}

fn read(path: &Path) -> Tree {
    assert!(path.exists(), "{} was not made", path.display());
    if path.is_dir() { Tree::read(path) } else { Tree::read(path.parent().unwrap()) }
}

fn has(program: &str) -> bool {
    let found = ["/usr/bin", "/usr/local/bin", "/bin"]
        .iter()
        .any(|at| Path::new(at).join(program).exists());
    if !found {
        skip(&format!("{program} is not installed"));
    }
    found
}

#[test]
fn work_gcc_and_make_build_the_same_program() {
    for_both(|lab| {
        if !(has("gcc") && has("make")) {
            return;
        }
        lab.write("a.c", "int twice(int x) { return 2 * x; }\n");
        lab.write("m.c", "#include <stdio.h>\nint twice(int);\nint main(void) { printf(\"%d\\n\", twice(21)); return 0; }\n");
        lab.write("Makefile", "out/m: out/a.o out/m.o\n\tgcc -o $@ $^\nout/%.o: %.c\n\t@mkdir -p out\n\tgcc -O2 -c -o $@ $<\n");
        same_inside(lab, &[], "make -s -j2 && ./out/m && sha256sum out/m", &["out"]);
    });
}

#[test]
fn work_git_commits_packs_and_logs() {
    for_both(|lab| {
        if !has("git") {
            return;
        }
        lab.write("a.txt", "one\n");
        let script = "git init -q -b main . && git config user.name n && git config user.email e@x && \
            export GIT_AUTHOR_DATE='2020-01-01T00:00:00Z' GIT_COMMITTER_DATE='2020-01-01T00:00:00Z' && \
            git add -A && git commit -qm first && for i in 1 2 3; do echo $i >> a.txt; \
            git commit -qam $i; done && git checkout -qb side HEAD~2 && echo s > s && git add s && \
            git commit -qm side && git merge -q main -m merged && git gc -q && git fsck && \
            git log --format=%H%s && git status --short && cat a.txt";
        same_inside(lab, &[], script, &[]);
    });
}

#[test]
fn work_python_makes_and_uses_a_virtual_environment() {
    for_both(|lab| {
        if !has("python3") {
            return;
        }
        let script = "/usr/bin/python3 -m venv --without-pip v && . v/bin/activate && \
            python -c 'import sys, json, sqlite3, ssl, asyncio, multiprocessing as m\n\
            print(sys.prefix.rsplit(\"/\", 1)[1], m.get_context(\"fork\").Pool(2).map(abs, [-1, -2]))\n\
            print(asyncio.run(asyncio.sleep(0, 7)))\n\
            d = sqlite3.connect(\"x.db\"); d.execute(\"create table t(a)\"); d.commit(); print(\"db\")'";
        same_inside(lab, &[], script, &[]);
    });
}

#[test]
fn work_node_runs_workers_files_and_sockets() {
    for_both(|lab| {
        if !has("node") {
            return;
        }
        lab.write(
            "t.js",
            "const w = require('worker_threads'), fs = require('fs'), http = require('http');\n\
             if (!w.isMainThread) { w.parentPort.postMessage(6 * 7); } else {\n\
             new w.Worker(__filename).on('message', m => { console.log(m);\n\
             fs.writeFileSync('out.txt', 'x'.repeat(1000)); fs.watch('.').close();\n\
             const s = http.createServer((q, r) => r.end('hi')).listen(0, '127.0.0.1', () =>\n\
             http.get({ port: s.address().port, host: '127.0.0.1' }, r => r.on('data', d => { console.log(String(d)); process.exit(0); })));\n\
             }); }\n",
        );
        same_inside(lab, &[], "node t.js", &["out.txt"]);
    });
}

/// `npm ci` of a lockfile, from a registry that is a program of twenty lines on the loopback inside.
#[test]
fn work_npm_ci_installs_from_a_local_registry() {
    for_both(|lab| {
        if !(has("npm") && has("node")) {
            return;
        }
        lab.write(
            "registry/package/package.json",
            "{\"name\":\"tiny\",\"version\":\"1.0.0\",\"main\":\"i.js\"}",
        );
        lab.write("registry/package/i.js", "module.exports = 42;\n");
        let pack = lab.program("tar").args(["-czf", "tiny.tgz", "package"]);
        pack.directory(lab.project.join("registry")).run().ok();
        let sum = "require('crypto').createHash('sha512').update(require('fs').readFileSync('registry/tiny.tgz')).digest('base64')";
        let sum = lab.program("node").args(["-p", sum]).run().ok().text();
        lab.write("server.js", "require('http').createServer((q, r) => r.end(require('fs').readFileSync('registry/tiny.tgz'))).listen(4873, '127.0.0.1');\n");
        lab.write(
            "package.json",
            "{\"name\":\"p\",\"version\":\"1.0.0\",\"dependencies\":{\"tiny\":\"1.0.0\"}}\n",
        );
        let lock = format!(
            "{{\"name\":\"p\",\"version\":\"1.0.0\",\"lockfileVersion\":3,\"requires\":true,\"packages\":{{\
             \"\":{{\"name\":\"p\",\"version\":\"1.0.0\",\"dependencies\":{{\"tiny\":\"1.0.0\"}}}},\
             \"node_modules/tiny\":{{\"version\":\"1.0.0\",\"resolved\":\"http://127.0.0.1:4873/tiny.tgz\",\"integrity\":\"sha512-{sum}\"}}}}}}\n"
        );
        lab.write("package-lock.json", lock);
        let script = "node server.js & s=$!; trap 'kill $s' EXIT; \
            for i in $(seq 100); do node -e \"require('net').connect(4873,'127.0.0.1').on('connect',()=>process.exit(0)).on('error',()=>process.exit(1))\" && break; sleep 0.1; done; \
            npm ci --silent --no-audit --no-fund --registry http://127.0.0.1:4873/ && node -p \"require('tiny')\"";
        let ran =
            lab.skep(["run", "--name", "work", "--", "sh", "-ec", script]).within(300).run().ok();
        assert_eq!(ran.text().lines().last(), Some("42"), "{}", ran.describe());
    });
}

/// The tool chain of the user who runs the tests, shown inside with `--mount`.
#[test]
fn heavy_work_cargo_builds_and_tests_a_crate() {
    for_both(|lab| {
        let Some((cargo, rustup)) = tool_chain() else { return skip("no cargo to show inside") };
        if !lab.who.is_root() {
            // Root's home is closed to the ordinary user: nothing to compare with.
            return;
        }
        lab.write(
            "Cargo.toml",
            "[package]\nname = \"tiny\"\nversion = \"0.1.0\"\nedition = \"2021\"\n",
        );
        lab.write("src/lib.rs", "pub fn twice(x: u32) -> u32 { 2 * x }\n#[test]\nfn doubles() { assert_eq!(twice(4), 8); }\n");
        lab.write("src/main.rs", "fn main() { println!(\"{}\", tiny::twice(21)); }\n");
        let mounts = [format!("{0}:{0}", cargo.display()), format!("{0}:{0}", rustup.display())];
        let script = format!(
            "export PATH={0}/bin:$PATH CARGO_HOME=/tmp/cargo-home-{2} RUSTUP_HOME={1}; \
             cargo build -q --offline && ./target/debug/tiny && cargo test -q --offline 2>&1 | grep -o '1 passed' | head -1",
            cargo.display(),
            rustup.display(),
            lab.root.file_name().unwrap().display()
        );
        let flags = ["--mount", mounts[0].as_str(), "--mount", mounts[1].as_str()];
        same_inside(lab, &flags, &script, &[]);
        let _ = std::fs::remove_dir_all(format!(
            "/tmp/cargo-home-{}",
            lab.root.file_name().unwrap().display()
        ));
    });
}

fn tool_chain() -> Option<(PathBuf, PathBuf)> {
    let home = PathBuf::from(std::env::var_os("HOME")?);
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    let rustup =
        std::env::var_os("RUSTUP_HOME").map_or_else(|| home.join(".rustup"), PathBuf::from);
    (cargo.join("bin/cargo").exists() && rustup.is_dir()).then_some((cargo, rustup))
}
