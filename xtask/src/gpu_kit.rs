//! `cargo xtask gpu-kit`: a folder that tests cgpu on a machine with a GPU and Python 3, without
//! cargo or a network, and an archive of it. `docs/internals/gpu-kit.md` has its design.
//!
//! Its programs run with glibc 2.17 and newer ([`portable`]), since the machine is not known
//! beforehand. The tests run the same folder with the files that they have built.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::cargo::Workspace;
use crate::collection::TEST;
use crate::{build, portable, programs, python};

/// Size limit of the kit, which is copied as a whole.
const MAX_BYTES: u64 = 64 << 20;

/// The folder of the kit below `target`, and in its archive.
const NAME: &str = "gpu-kit";
/// The folder of the kit's scripts.
const SCRIPTS: &str = "bench/gpu-kit";
/// The folder of built files in the kit.
const DIST: &str = "dist";
/// The file that names the commit that the kit was built from.
const COMMIT: &str = "commit";

/// Built separately, as it is shipped: packages built beside the shim change its instructions.
const SHIM: &[&str] = &["libcgpu.so"];
/// What the rows and the demo run beside the shim. There is no simulated driver: the machine has a
/// real one.
const TOOLS: &[&str] = &["cgpu", "cgpu-monitor", "cgpu-demo"];
/// The program that engines call, which is linked statically.
const RUNTIME: &str = "cgpu-runtime";
/// What the Docker rows install it by.
const INSTALLATION: &[&str] = &[
    "deploy/install.sh",
    "deploy/uninstall.sh",
    "deploy/example.py",
    "deploy/files.sh",
    "deploy/monitor.toml",
    "deploy/cgpu-monitor.service",
];
/// The source of the CUDA runtime's clients.
const CLIENT: &str = "runtime_fill";
/// Names of the CUDA runtime that have a client each.
const SONAMES: [&str; 3] = ["11.0", "12", "13"];
/// The packages that have these runtimes.
const RUNTIMES: &str = "xtask/runtimes.txt";
/// The symbols that cgpu knows, with which a row compares the driver's.
const SYMBOLS: &[&str] = &["driver-symbols.tsv", "nvml-symbols.tsv"];
/// The folder of [`SYMBOLS`].
const ABI_DATA: &str = "abi/data";

/// Builds the kit in `target/gpu-kit`, packs it, and returns the archive.
pub(crate) fn run() -> Result<PathBuf> {
    let workspace = Workspace::find()?;
    let kit = workspace.target.join(NAME);
    copy_scripts(&workspace, &kit)?;
    let dist = kit.join(DIST);
    for names in [SHIM, TOOLS] {
        portable::programs(&workspace, "release", &dist, names)?;
        names.iter().try_for_each(|name| build::strip_debug(&dist.join(name)))?;
    }
    build::runtime(&workspace, "release", &dist)?;
    build::strip_debug(&dist.join(RUNTIME))?;
    let prepared = portable::compiler(&workspace)?;
    let names = programs::without_driver(&workspace)?;
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    programs::compile_by(&workspace, || portable::copy(&prepared), &names, &dist.join("programs"))?;
    copy_symbols(&workspace, &dist)?;
    // Without a network the rows about them say that the kit lacks them.
    match python::make(&workspace, "runtimes", RUNTIMES) {
        Ok(python) => compile_clients(&workspace, &python, || portable::copy(&prepared), &dist)?,
        Err(error) => eprintln!("xtask: no clients of the CUDA runtime: {error:#}"),
    }
    let bytes = size(&kit)?;
    ensure!(bytes <= MAX_BYTES, "the kit has {bytes} bytes, more than {MAX_BYTES}");
    let archive = pack(&workspace.target)?;
    eprintln!(
        "xtask: {} MiB in {}, packed in {}; on the machine with the GPU: ./run.sh",
        bytes >> 20,
        kit.display(),
        archive.display()
    );
    Ok(archive)
}

/// Packs the folder of the kit.
fn pack(target: &Path) -> Result<PathBuf> {
    let archive = target.join(NAME).with_extension("tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--owner=0", "--group=0", "--sort=name", "--exclude=results", "-C"]).arg(target);
    let status = tar.arg("-czf").arg(&archive).arg(NAME).status().context("cannot run tar")?;
    ensure!(status.success(), "tar failed");
    Ok(archive)
}

/// Compiles a client of each CUDA runtime of a Python environment, and copies the runtimes and
/// their licence.
fn compile_clients(
    workspace: &Workspace,
    python: &Path,
    compiler: impl Fn() -> Command,
    dist: &Path,
) -> Result<()> {
    let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = Command::new(python).args(["-c", packages]).output()?.stdout;
    let installed = files_below(Path::new(String::from_utf8(packages)?.trim()))?;
    let copied = |name: &str| {
        let found = installed.iter().find(|file| file.file_name().is_some_and(|own| own == name));
        let found = found.with_context(|| format!("{RUNTIMES} brings no {name}"))?;
        let to = dist.join("runtimes").join(name);
        build::place(found, &to).map(|()| to)
    };
    copied("License.txt")?;
    let source = workspace.root.join(SCRIPTS).join(CLIENT).with_extension("c");
    fs::create_dir_all(dist.join("clients")).context("cannot create a folder for clients")?;
    for soname in SONAMES {
        let library = copied(&format!("libcudart.so.{soname}"))?;
        // The runtime needs a newer glibc than the client does.
        let options = ["-Wl,--allow-shlib-undefined", "-Wl,-rpath,$ORIGIN/../runtimes"];
        let mut compiler = compiler();
        compiler.args(options);
        let client = dist.join("clients").join(format!("{CLIENT}-{soname}"));
        programs::compile_one(workspace, compiler, &source, &client, Some(library))?;
    }
    Ok(())
}

fn files_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Makes the kit that the tests run, from the files built for tests.
pub(crate) fn collect_for_tests(workspace: &Workspace) -> Result<()> {
    let built = workspace.target.join(TEST.folder);
    let kit = built.join(NAME);
    copy_scripts(workspace, &kit)?;
    let tools = SHIM.iter().chain(TOOLS).chain([&RUNTIME]).map(|&name| name.to_owned());
    let programs = programs::without_driver(workspace)?;
    let programs = programs.iter().map(|name| format!("programs/{name}"));
    tools
        .chain(programs)
        .try_for_each(|name| share(&built.join(&name), &kit.join(DIST).join(&name)))?;
    copy_symbols(workspace, &kit.join(DIST))?;
    // Complete once the tests of client programs have run where a package index is reachable.
    match python::complete(workspace, "venv") {
        Some(python) => compile_clients(workspace, &python, || Command::new("cc"), &kit.join(DIST)),
        None => Ok(()),
    }
}

fn copy_symbols(workspace: &Workspace, dist: &Path) -> Result<()> {
    SYMBOLS.iter().try_for_each(|name| {
        build::place(&workspace.root.join(ABI_DATA).join(name), &dist.join(name))
    })
}

/// Clears the kit and copies its scripts.
fn copy_scripts(workspace: &Workspace, kit: &Path) -> Result<()> {
    if kit.exists() {
        fs::remove_dir_all(kit).with_context(|| format!("cannot clear {}", kit.display()))?;
    }
    for file in scripts(workspace)? {
        let name = file.file_name().context("the path has no name")?;
        build::place(&file, &kit.join(name))?;
    }
    for file in INSTALLATION {
        build::place(&workspace.root.join(file), &kit.join(file))?;
    }
    fs::write(kit.join(COMMIT), commit(workspace)).context("cannot write the commit")
}

/// Returns the kit's scripts. Python's caches are in a folder, which is skipped.
fn scripts(workspace: &Workspace) -> Result<Vec<PathBuf>> {
    let folder = workspace.root.join(SCRIPTS);
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let files = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    Ok(files.into_iter().filter(|file| file.is_file()).collect())
}

/// Links a file, or copies it to another file system.
fn share(from: &Path, to: &Path) -> Result<()> {
    let parent = to.parent().context("the path has no folder")?;
    fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
    fs::hard_link(from, to).or_else(|_| build::place(from, to))
}

/// Returns the commit, and whether the sources differ from it.
fn commit(workspace: &Workspace) -> String {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").arg("-C").arg(&workspace.root).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(commit) = git(&["rev-parse", "HEAD"]) else { return "unknown".to_owned() };
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_none_or(|text| !text.is_empty());
    if changed { format!("{commit} with changes") } else { commit }
}

fn size(folder: &Path) -> Result<u64> {
    let files = files_below(folder)?;
    files.iter().map(|file| Ok(fs::metadata(file)?.len())).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the names in all calls `FUNCTION("NAME")` of the kit's scripts.
    fn named(function: &str) -> BTreeSet<String> {
        let scripts = scripts(&Workspace::find().unwrap()).unwrap();
        let python =
            scripts.iter().filter(|file| file.extension().is_some_and(|found| found == "py"));
        let text: String = python.map(|file| fs::read_to_string(file).unwrap()).collect();
        let calls =
            text.split(&format!("{function}(\"")).skip(1).map(str::to_owned).collect::<Vec<_>>();
        calls.iter().filter_map(|rest| rest.split('"').next()).map(str::to_owned).collect()
    }

    #[test]
    fn kit_has_exactly_the_files_that_its_rows_run() {
        let programs = programs::without_driver(&Workspace::find().unwrap()).unwrap();
        let programs: BTreeSet<String> = programs.into_iter().collect();
        let run = named("kit.program");
        assert!(run.len() > 5 && run.is_subset(&programs), "{run:?}");
        for name in SYMBOLS {
            assert!(Workspace::find().unwrap().root.join(ABI_DATA).join(name).exists(), "{name}");
        }
        let files = SHIM.iter().chain(TOOLS).chain([&RUNTIME]).map(|&name| name.to_owned());
        // The rows name these folders, too.
        let run: BTreeSet<String> = named("kit.file");
        let run =
            run.into_iter().filter(|name| !["programs", "clients", "runtimes"].contains(&&**name));
        assert_eq!(run.collect::<BTreeSet<_>>(), files.collect());
    }

    #[test]
    fn rows_name_the_clients_that_are_built() {
        let rows = Workspace::find().unwrap().root.join(SCRIPTS).join("runtime_rows.py");
        let sonames = SONAMES.map(|soname| format!("\"{soname}\"")).join(", ");
        assert!(fs::read_to_string(rows).unwrap().contains(&format!("SONAMES = ({sonames})")));
    }

    #[test]
    fn kit_has_each_script_that_installs_and_uninstalls() {
        let root = Workspace::find().unwrap().root;
        let list = fs::read_to_string(root.join("deploy/files.sh")).unwrap();
        let named = list.lines().filter_map(|line| line.split(' ').next());
        for file in named.filter(|file| file.starts_with("deploy/")) {
            assert!(INSTALLATION.contains(&file), "{file}");
        }
    }
}
