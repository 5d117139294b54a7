//! Builds the files of packages for a machine: programs for glibc 2.17, or linked statically. Two
//! builds of a commit have the same bytes, wherever the sources are.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::{self, Workspace};
use crate::{build, collection, portable};

/// Files that load NVIDIA's libraries or are loaded into programs.
const DYNAMIC: &[&str] = &[
    "libcgpu.so",
    "cgpu",
    "cgpu-monitor",
    "sim/libcuda.so.1",
    "sim/libnvidia-ml.so.1",
    "cgpu-device-plugin",
    "cgpu-dra-driver",
    "kubectl-inspect-gpushare",
];

/// Programs that are linked statically: an engine waits for `cgpu-runtime`, and the others run in
/// an image without any other file.
const STATIC: &[&str] = &["cgpu-runtime", "cgpu-scheduler-extender", "cgpu-dra-controller"];

/// Builds the files for a machine; returns their folder.
pub(crate) fn build(workspace: &Workspace, machine: &str) -> Result<PathBuf> {
    let folder = workspace.target.join("package/built").join(machine);
    let compiler = Compiler::find(machine)?;
    let variables = variables(workspace, &compiler)?;
    portable::programs_for(workspace, machine, &variables, "release", &folder, DYNAMIC)?;
    for name in STATIC {
        link_statically(workspace, &compiler, &variables, name, &folder)?;
    }
    Ok(folder)
}

/// The C compiler for a machine, which also links.
struct Compiler {
    triple: String,
    program: String,
}

impl Compiler {
    /// Finds it, with a static C library.
    fn find(machine: &str) -> Result<Self> {
        let program = if machine == std::env::consts::ARCH {
            "cc".to_owned()
        } else {
            format!("{machine}-linux-gnu-gcc")
        };
        // It prints the full path of a file that it finds, else only the name.
        let library = Command::new(&program)
            .arg("-print-file-name=libc.a")
            .output()
            .with_context(|| format!("cannot run {program}: install a C compiler for {machine}"))?;
        ensure!(
            library.stdout.starts_with(b"/"),
            "{program} finds no static C library: install libc6-dev or glibc-static for {machine}"
        );
        Ok(Self { triple: format!("{machine}-unknown-linux-gnu"), program })
    }
}

/// Returns the variables of a build without debug information or paths of this machine.
fn variables(workspace: &Workspace, compiler: &Compiler) -> Result<Vec<(String, OsString)>> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let folders = [(&workspace.root, "/cgpu"), (&workspace.target, "/target"), (&home, "/cargo")];
    let flags = |option: &str| {
        let flag = |(from, to): &(&PathBuf, &str)| format!("{option}={}={to}", from.display());
        OsString::from(folders.iter().map(flag).collect::<Vec<_>>().join(" "))
    };
    let triple = compiler.triple.replace('-', "_");
    Ok([
        ("RUSTFLAGS".to_owned(), flags("--remap-path-prefix")),
        (format!("CFLAGS_{triple}"), flags("-ffile-prefix-map")),
        ("CARGO_PROFILE_RELEASE_DEBUG".to_owned(), "false".into()),
        ("CARGO_PROFILE_RELEASE_STRIP".to_owned(), "debuginfo".into()),
    ]
    .into())
}

fn link_statically(
    workspace: &Workspace,
    compiler: &Compiler,
    variables: &[(String, OsString)],
    name: &str,
    to: &Path,
) -> Result<()> {
    let item = collection::ITEMS.iter().find(|item| item.name == name).context("no such item")?;
    let mut command = workspace.cargo(&["rustc"]);
    command.envs(variables.iter().map(|(name, value)| (name, value)));
    // Not for the others: zig links those for the old glibc.
    let triple = compiler.triple.replace('-', "_");
    command.env(format!("CC_{triple}"), &compiler.program);
    let linker = format!("CARGO_TARGET_{}_LINKER", triple.to_uppercase());
    command.env(linker, &compiler.program);
    let artifacts = workspace.build_by(
        &mut command,
        &[
            "--release",
            "--target",
            &compiler.triple,
            "--package",
            item.package,
            "--bin",
            item.target,
            "--",
            "-C",
            "target-feature=+crt-static",
        ],
    )?;
    let file = cargo::find(&artifacts, &workspace.root, item.folder, item.target)?;
    build::place(file, &to.join(name))
}
