//! `cuGetProcAddress` and the exports of driver versions: the simulated driver against the measured
//! data, and against real drivers where they are available. A real driver needs no GPU for
//! look-ups, and nothing else is called.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use cgpu_e2e::{Child, Fixture, MIB, Outcome, skip};

/// Branches of the real driver with their CUDA versions.
const BRANCHES: [(&str, u32); 2] = [("535.", 12_020), ("550.", 12_040)];

/// Debian releases that have them.
const RELEASES: [&str; 2] = ["bookworm", "trixie"];

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../abi/data").join(name)
}

fn rows(name: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(data(name)).expect("the table is there");
    text.lines().skip(1).map(|line| line.split('\t').map(str::to_owned).collect()).collect()
}

/// Looks up every name in a library and returns the results and its exports, line by line.
fn lookups(fixture: &Fixture, library: &Path, names: &Path, version: u32) -> Vec<String> {
    let mut command = fixture.program("lookups");
    command.arg(library).arg(names).arg(data("driver-symbols.tsv"));
    command.env("CGPU_SIM_DRIVER", version.to_string());
    let lines = Outcome::of(command).silent().stdout;
    lines.lines().map(str::to_owned).collect()
}

#[test]
fn lookups_match_the_measured_rows() {
    let fixture = Fixture::new("A10:23028");
    let library = fixture.dist().file("sim/libcuda.so.1");
    let exports: Vec<Vec<String>> = rows("driver-symbols.tsv");
    for (column, version) in [(2, 12_020), (3, 12_040)] {
        let exported: BTreeSet<&str> =
            exports.iter().filter(|row| row[column] == "1").map(|row| row[0].as_str()).collect();
        let answers = lookups(&fixture, &library, &data("proc-address.tsv"), version);
        let found: BTreeSet<&str> =
            answers.iter().filter(|line| !line.contains(' ')).map(String::as_str).collect();
        assert_eq!(found, exported, "exports of {version}");
        let answers: BTreeMap<&str, &str> =
            answers.iter().filter_map(|line| line.split_once(": ")).collect();
        let rows = rows("proc-address.tsv");
        assert_eq!(rows.len(), 685);
        for row in &rows {
            let [name, flavour, at, _] = &row[..] else { panic!("{row:?}") };
            // The newest of the name's functions of that flavour that is not newer and that the
            // driver has.
            let at: u32 = at.parse().expect("a version");
            let known = rows.iter().filter(|other| {
                let newer = other[2].parse::<u32>().expect("a version") > at;
                other[0] == *name
                    && other[1] == *flavour
                    && !newer
                    && exported.contains(other[3].as_str())
            });
            let symbol = known.max_by_key(|other| other[2].parse::<u32>().expect("a version"));
            let expected = symbol.map_or("0 1 -".to_owned(), |row| format!("0 0 {}", row[3]));
            let flags = if flavour == "legacy" { 0 } else { 2 };
            assert_eq!(answers[&*format!("{name} {at} {flags}")], expected, "{row:?} by {version}");
        }
    }
}

#[test]
fn oldest_driver_has_no_lookup_function() {
    let fixture = Fixture::new("V100:16130");
    let library = fixture.dist().file("sim/libcuda.so.1");
    let exports = lookups(&fixture, &library, &data("proc-address.tsv"), 10_010);
    for name in ["cuInit", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cuGraphLaunch"] {
        assert!(exports.contains(&name.to_owned()), "{name} is not there");
    }
    for name in [
        "cuGetProcAddress",
        "cuGetProcAddress_v2",
        "cuMemCreate",
        "cuMemAllocAsync",
        "cuLibraryLoadData",
    ] {
        assert!(!exports.contains(&name.to_owned()), "{name} is there");
    }
    let mut run = fixture.program("launch_loop");
    run.args(["spin_50us", "--count", "20"]).env("CGPU_SIM_DRIVER", "10010");
    assert_eq!(Outcome::of(run).silent().json()["launches"], 20);
}

#[test]
fn limit_holds_with_old_and_new_drivers() {
    for version in ["10010", "11040", "12040", "13050"] {
        let fixture = Fixture::new("V100:16130");
        let mut fill = fixture.program_in(&fixture.limited("old-and-new", 1024), "alloc_fill");
        let outcome = Outcome::of({
            fill.args(["64M", "2"]).env("CGPU_SIM_DRIVER", version);
            fill
        })
        .silent();
        assert_eq!(
            (outcome.number("error"), outcome.number("total")),
            (2, 1024 * MIB),
            "{version}: {outcome:?}"
        );
        assert!(outcome.number("granted") <= 1024 * MIB, "{version}: {outcome:?}");
    }
}

/// Does the same look-ups through the shim. Its hooks replace functions of the same version and
/// flavour only, and each answer names the function's library.
fn through_the_shim(fixture: &Fixture, library: &Path, names: &Path, version: u32) -> Vec<String> {
    let mut command = fixture.program_in(&fixture.limited("lookups", 1024), "lookups");
    command.arg(library).arg(names).arg(data("driver-symbols.tsv"));
    command.env("CGPU_SIM_DRIVER", version.to_string());
    let lines = Outcome::of(command).silent().stdout;
    lines.lines().map(str::to_owned).collect()
}

fn hooks() -> BTreeSet<String> {
    let exports = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shim/golden/exports.txt");
    let exports = fs::read_to_string(exports).expect("the list of exports");
    exports.lines().map(str::to_owned).collect()
}

#[test]
fn shim_returns_the_version_that_the_driver_chose() {
    let fixture = Fixture::new("A10:23028");
    let simulated = fixture.dist().file("sim/libcuda.so.1");
    let mut drivers: Vec<(PathBuf, u32)> = [11_030, 11_070, 12_000, 12_040, 13_000, 13_050]
        .map(|version| (simulated.clone(), version))
        .into();
    match real_drivers() {
        Ok(real) => drivers.extend(real),
        Err(reason) => {
            skip("lookups::shim_returns_the_version_that_the_driver_chose", "real-driver", &reason)
        }
    }
    let names = data("proc-address.tsv");
    let hooks = hooks();
    for (library, version) in drivers {
        let bare = lookups(&fixture, &library, &names, version);
        let shimmed = through_the_shim(&fixture, &library, &names, version);
        let (mut ours, mut exchanged) = (0, BTreeSet::new());
        for (shimmed, bare) in shimmed.iter().zip(&bare) {
            // The same version and flavour: in our library if there is a hook, else in the
            // driver's.
            let (lookup, symbol) = bare.rsplit_once(' ').unwrap_or(("", bare));
            let expected = if hooks.contains(symbol) {
                ours += 1;
                exchanged.insert(symbol);
                format!("{lookup} libcgpu.so:{symbol}")
            } else {
                bare.clone()
            };
            assert_eq!(shimmed, expected.trim_start(), "{version} of {}", library.display());
        }
        assert_eq!(shimmed.len(), bare.len());
        // The oldest of them lacks the second look-up function and has only exports.
        assert!(exchanged.len() > 100, "{version}: {} hooks", exchanged.len());
        assert!(version < 12_000 || ours > 2000, "{version}: {ours} answers were hooks");
    }
}

#[test]
fn real_drivers_match_the_simulated_one() {
    let drivers = match real_drivers() {
        Ok(drivers) => drivers,
        Err(reason) => {
            return skip("lookups::real_drivers_match_the_simulated_one", "real-driver", &reason);
        }
    };
    let fixture = Fixture::new("A10:23028");
    let simulated = fixture.dist().file("sim/libcuda.so.1");
    // Names from the headers, and names that only drivers export.
    let names = fixture.path("names.tsv");
    let both =
        ["proc-address.tsv", "proc-address-exports.tsv"].map(|name| fs::read_to_string(data(name)));
    let [headers, others] = both.map(|text| text.expect("the table is there"));
    let others: String = others.lines().skip(1).map(|line| format!("{line}\n")).collect();
    fs::write(&names, headers + &others).expect("a table of all names");
    for (library, version) in drivers {
        let real = lookups(&fixture, &library, &names, version);
        let ours = lookups(&fixture, &simulated, &names, version);
        assert!(real.len() > 20_000, "{} answers of {}", real.len(), library.display());
        for (real, ours) in real.iter().zip(&ours) {
            assert_eq!(ours, real, "against {}", library.display());
        }
        assert_eq!(ours.len(), real.len());
    }
}

/// Unpacks the libraries of both branches from Debian's non-free packages into a folder of the
/// tests, which is kept for the next run. Nothing is installed.
fn real_drivers() -> Result<Vec<(PathBuf, u32)>, String> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("real-drivers");
    // Each test is a process: one unpacks, and the other waits for it.
    let one_at_a_time =
        fs::create_dir_all(&folder).and_then(|()| fs::File::create(folder.join("lock")));
    let one_at_a_time = one_at_a_time.map_err(|error| format!("{}: {error}", folder.display()))?;
    one_at_a_time.lock().map_err(|error| format!("{}: {error}", folder.display()))?;
    let apt = Apt::in_folder(&folder)?;
    let mut versions = None;
    BRANCHES
        .into_iter()
        .map(|(branch, cuda)| {
            let place = folder.join(branch.trim_end_matches('.'));
            if library(&place).is_none() {
                let versions = match &versions {
                    Some(versions) => versions,
                    None => versions.insert(apt.versions()?),
                };
                let version =
                    versions.iter().find(|version| version.starts_with(branch)).ok_or_else(
                        || format!("no release of the distribution has a libcuda1 {branch}*"),
                    )?;
                apt.unpack(version, &place)?;
            }
            let library =
                library(&place).ok_or_else(|| format!("libcuda1 {branch}* has no libcuda.so"))?;
            Ok((library, cuda))
        })
        .collect()
}

/// Finds the library in an unpacked package: the file itself, since its links are absolute.
fn library(folder: &Path) -> Option<PathBuf> {
    for entry in fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let found = if entry.file_type().ok()?.is_dir() {
            library(&path)
        } else {
            name.starts_with("libcuda.so.").then_some(path).filter(|path| !path.is_symlink())
        };
        if found.is_some() {
            return found;
        }
    }
    None
}

/// apt with its own lists, which leaves the machine's packages and configuration unchanged.
struct Apt {
    configuration: PathBuf,
    folder: PathBuf,
}

impl Apt {
    fn in_folder(folder: &Path) -> Result<Self, String> {
        let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
        if !Path::new(keyring).exists() {
            return Err("not on Debian, whose non-free packages have real drivers".to_owned());
        }
        let mirror = Self::mirror()?;
        let failed = |error: std::io::Error| format!("{}: {error}", folder.display());
        for part in ["lists/partial", "cache/archives/partial", "none"] {
            fs::create_dir_all(folder.join(part)).map_err(failed)?;
        }
        fs::write(folder.join("status"), "").map_err(failed)?;
        let sources = RELEASES
            .map(|release| format!("deb [signed-by={keyring}] {mirror} {release} non-free\n"));
        fs::write(folder.join("sources.list"), sources.concat()).map_err(failed)?;
        let at = |name: &str| folder.join(name).display().to_string();
        let settings = [
            ("Dir::Etc::SourceList", at("sources.list")),
            ("Dir::Etc::SourceParts", at("none")),
            ("Dir::State::Lists", at("lists")),
            ("Dir::State::status", at("status")),
            ("Dir::Cache", at("cache")),
            ("APT::Sandbox::User", "root".to_owned()),
            ("Acquire::http::Timeout", "20".to_owned()),
        ];
        let configuration = folder.join("apt.conf");
        let text: String =
            settings.iter().map(|(name, value)| format!("{name} \"{value}\";\n")).collect();
        fs::write(&configuration, text).map_err(failed)?;
        Ok(Self { configuration, folder: folder.to_owned() })
    }

    fn mirror() -> Result<String, String> {
        let mut command = Command::new("apt-get");
        command.args(["indextargets", "--format", "$(ORIGIN) $(COMPONENT) $(RELEASE) $(REPO_URI)"]);
        let output = command
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("no apt-get: {error}"))?;
        let targets = String::from_utf8_lossy(&output.stdout);
        let mut targets = targets.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let debian = targets.find(|target| {
            target.len() == 4 && target[..2] == ["Debian", "main"] && !target[2].contains('-')
        });
        debian
            .map(|target| target[3].to_owned())
            .ok_or_else(|| "this machine does not know where to get Debian's packages".to_owned())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new(program);
        command.args(arguments).env("APT_CONFIG", &self.configuration).current_dir(&self.folder);
        let outcome = Child::start_for(command, Duration::from_secs(110)).finish();
        match outcome.code() {
            Some(0) => Ok(outcome.stdout),
            _ => Err(format!(
                "{program} {arguments:?} failed: {}",
                outcome.stderr.lines().last().unwrap_or("")
            )),
        }
    }

    fn versions(&self) -> Result<Vec<String>, String> {
        self.run("apt-get", &["update", "--quiet"])?;
        let versions = self.run("apt-cache", &["madison", "libcuda1"])?;
        Ok(versions
            .lines()
            .filter_map(|line| line.split(" | ").nth(1))
            .map(|it| it.trim().to_owned())
            .collect())
    }

    fn unpack(&self, version: &str, to: &Path) -> Result<(), String> {
        self.run("apt-get", &["download", "--quiet", &format!("libcuda1={version}")])?;
        let packages = fs::read_dir(&self.folder).map_err(|error| error.to_string())?.flatten();
        let name = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let package = packages
            .map(|entry| name(&entry))
            .find(|name| name.starts_with(&format!("libcuda1_{version}")))
            .ok_or_else(|| format!("libcuda1 {version} was not downloaded"))?;
        // It is renamed once it is complete, in case the test is interrupted.
        let half = to.with_extension("half");
        let _ = fs::remove_dir_all(&half);
        self.run("dpkg-deb", &["--extract", &package, &half.display().to_string()])?;
        let _ = fs::remove_dir_all(to);
        fs::rename(&half, to).map_err(|error| format!("{}: {error}", to.display()))?;
        let _ = fs::remove_file(self.folder.join(package));
        Ok(())
    }
}
