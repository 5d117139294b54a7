//! The first commands of README.md, as a reader types them, with the built programs and the
//! fixture's root.

use cgpu_e2e::{Fixture, MIB, Outcome, readme_commands, readme_output};
use serde_json::Value;

/// Runs a script with the built programs on its PATH, outside of containers, without variables of
/// the simulated GPU.
fn shell(fixture: &Fixture, script: &str) -> Outcome {
    let dist = fixture.dist().folder();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = fixture.native("sh".as_ref());
    shell
        .args(["-c", script])
        .env("PATH", format!("{}:{}:{path}", dist.display(), dist.join("programs").display()));
    for name in ["LD_LIBRARY_PATH", "CGPU_SIM_GPUS", "CGPU_SIM_STATE"] {
        shell.env_remove(name);
    }
    Outcome::of(shell)
}

/// Adds the fixture's root to the commands of `cgpu`.
fn with_root(fixture: &Fixture, line: &str) -> String {
    let root = fixture.root();
    ["run", "top", "smi"].iter().fold(line.to_owned(), |line, command| {
        let command = format!("cgpu {command}");
        line.replace(&command, &format!("{command} --root {}", root.display()))
    })
}

#[test]
fn first_commands_print_what_readme_shows() {
    let fixture = Fixture::new("");
    let commands = readme_commands("cargo xtask demo");
    let line = commands.last().expect("a command");
    assert!(line.starts_with("cgpu run --sim A10:23028 --mem 6GiB -- "), "{line}");
    let outcome = shell(&fixture, &with_root(&fixture, line)).exits(0);
    let shown: Value = serde_json::from_str(&readme_output()).expect("JSON in README.md");
    assert_eq!(outcome.json(), shown);
    assert!(outcome.stderr.contains("no monitor"), "{outcome:?}");
}

/// Prints its GPU's size, and how often it launched a kernel, in one line.
const PROGRAM: &str = "sh -c 'echo $(meminfo; launch_loop spin_60us --seconds 10)'";

/// Shows both containers when they have a share of the last second, by `cgpu smi`, which needs no
/// terminal; ends the monitor when the programs have ended.
const AFTER: &str = r#"
has_shares() { [ "$(cgpu smi --json | grep -o '"share_second": *[0-9]' | wc -l)" = 2 ]; }
until has_shares; do sleep 0.1; done
cgpu smi --json
wait $first $second
kill $monitor
"#;

#[test]
fn host_commands_limit_memory_and_share_compute() {
    let fixture = Fixture::new("");
    // The defaults are the host's own folders.
    let settings = fixture.path("monitor.toml");
    let [root, state] = [fixture.root(), fixture.path("state")];
    let config =
        format!("root = {root:?}\nstate = {state:?}\ntree = \"none\"\nmetrics = \"off\"\n");
    std::fs::write(&settings, config).expect("a configuration");
    let commands = readme_commands("cgpu-monitor &");
    let [monitor, first, second, top] = &commands[..] else { panic!("{commands:?}") };
    assert_eq!((monitor.as_str(), top.as_str()), ("cgpu-monitor &", "cgpu top"));
    // As README.md says for a host without a GPU.
    let simulated = |line: &str| {
        line.replace("cgpu run", "cgpu run --sim A10:23028").replace("PROGRAM", PROGRAM)
    };
    let script = format!(
        "cgpu-monitor --config {} &\nmonitor=$!\n{}\nfirst=$!\n{}\nsecond=$!\n{AFTER}",
        settings.display(),
        simulated(first),
        simulated(second)
    );
    let outcome = shell(&fixture, &with_root(&fixture, &script)).exits(0);
    let values = |line| serde_json::Deserializer::from_str(line).into_iter::<Value>();
    let printed: Vec<Vec<Value>> = (outcome.stdout.lines())
        .map(|line| values(line).collect::<Result<_, _>>().expect("JSON"))
        .collect();
    let report = printed.iter().find(|line| !line[0]["containers"].is_null());
    let report = &report.expect("the output of cgpu smi")[0];
    let launches = [("a", 8192, 1), ("b", 12288, 2)].map(|(name, mib, weight)| {
        let containers = report["containers"].as_array().into_iter().flatten();
        let shown = containers.clone().find(|it| it["name"] == name).unwrap_or(&Value::Null);
        let (seen, limit) = (&shown["gpus"][0]["limit"], mib * MIB);
        assert_eq!((seen, &shown["weight"]), (&limit.into(), &weight.into()), "{report:#}");
        let program = printed.iter().find(|line| line[0]["total"] == limit);
        let program = program.unwrap_or_else(|| panic!("no program sees {mib} MiB: {outcome:?}"));
        program[1]["launches"].as_u64().expect("a number of launches")
    });
    // Twice as much; much less on a busy machine.
    assert!(launches[1] > launches[0], "{launches:?}");
}
