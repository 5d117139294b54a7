//! `/etc/cgpu/runtime.toml`: the runtime's configuration on a host. All keys are optional.
//!
//! ```toml
//! runtime = "/usr/sbin/runc"             # the next runtime; default: found in PATH
//! shim = "/usr/lib/cgpu/libcgpu.so"      # default: beside this program, or in ../lib/cgpu
//! root = "/run/cgpu"                     # the monitor's root
//! sim = "T4:15109"                       # simulated GPUs, for a host without GPUs
//! ld_preload = true                      # start images whose loader supports LD_PRELOAD only
//! max_weight = 5                         # the greatest weight that a container may request
//! high_priority = false                  # containers get no high priority
//! wall = "required"                      # no container without the driver's memory limit
//! ```

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use cgpu_shm::limits::{Limits, MAX_WEIGHT};
use cgpu_shm::paths;
use cgpu_sim::gpu::GpuSpec;
use serde::Deserialize;
use toml::Spanned;

use crate::plan::Refusal;
use crate::wall::Wall;
use crate::{files, handover};

/// The default path of the configuration.
pub const PATH: &str = "/etc/cgpu/runtime.toml";

/// Libraries of the simulated driver.
pub const SIMULATED: [&str; 2] = ["libcuda.so.1", "libnvidia-ml.so.1"];

/// The keys of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    runtime: Option<Spanned<PathBuf>>,
    shim: Option<Spanned<PathBuf>>,
    root: Option<PathBuf>,
    sim: Option<Spanned<String>>,
    ld_preload: bool,
    max_weight: Option<Spanned<u32>>,
    high_priority: Option<bool>,
    wall: Wall,
}

impl File {
    /// Parses the file's text.
    ///
    /// # Errors
    /// The line that is invalid, from 0, and why, with its key.
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let line = |at: usize| text.get(..at).map_or(0, |before| before.matches('\n').count());
        let file: Self = toml::from_str(text).map_err(|error| {
            let line = line(error.span().map_or(0, |span| span.start));
            (line, explained(text.lines().nth(line).unwrap_or_default(), error.message()))
        })?;
        let invalid = |at: usize, key: &str, why: String| (line(at), format!("{key}: {why}"));
        if let Some(sim) = &file.sim {
            GpuSpec::parse_list(sim.get_ref()).map_err(|error| {
                // The simulator names its own variable.
                let why = error.to_string();
                invalid(sim.span().start, "sim", why.trim_start_matches("CGPU_SIM_GPUS: ").into())
            })?;
        }
        if let Some(runtime) = &file.runtime {
            check_runtime(runtime.get_ref())
                .map_err(|error| invalid(runtime.span().start, "runtime", error.to_string()))?;
        }
        if let Some(shim) = file.shim.as_ref().filter(|shim| !shim.get_ref().is_file()) {
            let why = format!("there is no file {}", shim.get_ref().display());
            return Err(invalid(shim.span().start, "shim", why));
        }
        if let Some(weight) =
            file.max_weight.as_ref().filter(|weight| !(1..=MAX_WEIGHT).contains(weight.get_ref()))
        {
            let why = format!("expected 1 to {MAX_WEIGHT}, found {}", weight.get_ref());
            return Err(invalid(weight.span().start, "max_weight", why));
        }
        Ok(file)
    }
}

/// Returns the parser's message with the key of the line, and what a value without quotes lacks.
fn explained(line: &str, message: &str) -> String {
    let (key, value) = line.split_once('=').unwrap_or((line, ""));
    let (key, value) = (key.trim_matches([' ', '\t', '[', ']']), value.trim());
    match key {
        "ld_preload" | "high_priority" if !["true", "false"].contains(&value) => {
            format!("{key}: expected true or false")
        }
        "wall" if value.contains("off") => {
            "wall: \"off\" belongs in monitor.toml; expected \"auto\" or \"required\"".to_owned()
        }
        "wall" => format!("wall: expected \"auto\" or \"required\", found {value}"),
        "runtime" | "shim" | "root" | "sim" if !value.starts_with(['"', '\'']) => {
            format!("{key}: expected text in quotes")
        }
        "" => message.to_owned(),
        _ if message.contains(key) => message.to_owned(),
        _ => format!("{key}: {message}"),
    }
}

fn check_runtime(runtime: &Path) -> Result<()> {
    let found = handover::next(Some(runtime), false)?;
    ensure!(found.is_file(), "there is no program {}", found.display());
    Ok(())
}

/// The runtime's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The next runtime; `None`: found in PATH.
    pub runtime: Option<PathBuf>,
    /// The monitor's root.
    pub root: PathBuf,
    /// The list of simulated GPUs.
    pub sim: Option<String>,
    /// Starts images whose loader reads no preload file with a variable, which their programs may
    /// unset.
    pub ld_preload: bool,
    /// The greatest weight that a container may request by a variable.
    max_weight: u32,
    /// Whether containers may request high priority.
    high_priority: bool,
    /// Whether containers start without the driver's memory limit.
    pub wall: Wall,
    shim: Option<PathBuf>,
}

impl Default for Config {
    /// Returns the defaults for root.
    fn default() -> Self {
        Self {
            runtime: None,
            root: paths::RUN.into(),
            sim: None,
            ld_preload: false,
            max_weight: MAX_WEIGHT,
            high_priority: true,
            wall: Wall::default(),
            shim: None,
        }
    }
}

impl Config {
    /// Reads the file, if it exists.
    ///
    /// # Errors
    /// A given file is missing, or the file is invalid, or no root is known.
    pub fn load(given: Option<&Path>) -> Result<Self> {
        let path = given.unwrap_or(Path::new(PATH));
        let text = match files::read_named(path) {
            Err(error) if given.is_none() && error.kind() == ErrorKind::NotFound => Vec::new(),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let text = String::from_utf8(text)
            .with_context(|| format!("{} is not text in UTF-8", path.display()))?;
        let file = File::parse(&text)
            .map_err(|(line, why)| anyhow!("{}, line {}: {why}", path.display(), line + 1))?;
        let mut user = rustix::process::geteuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        // Without that variable only root's folder is possible.
        if runtime.is_some() {
            user = outside(&fs::read_to_string("/proc/self/uid_map").unwrap_or_default(), user);
        }
        let root = paths::monitor_root(file.root.as_deref(), user, runtime.as_deref())?;
        Ok(Self {
            runtime: file.runtime.map(Spanned::into_inner),
            root: std::path::absolute(root)?,
            sim: file.sim.map(Spanned::into_inner),
            ld_preload: file.ld_preload,
            max_weight: file.max_weight.map_or(MAX_WEIGHT, Spanned::into_inner),
            high_priority: file.high_priority.unwrap_or(true),
            wall: file.wall,
            shim: file.shim.map(Spanned::into_inner),
        })
    }

    /// Checks what a container requests for itself at the cost of others. The scheduler counts the
    /// weight of a `share`.
    ///
    /// # Errors
    /// This host does not allow it.
    pub fn permit(&self, limits: &Limits, share: bool) -> Result<(), Refusal> {
        let (weight, max) = (limits.weight, self.max_weight);
        if !share && weight > max {
            return Err(Refusal(format!(
                "ALIYUN_COM_GPU_SCHD_WEIGHT is {weight}, and a container may have {max} here at \
                 most (max_weight in {PATH}): lower it"
            )));
        }
        if limits.high_priority && !self.high_priority {
            return Err(Refusal(format!(
                "high priority is requested, and no container has it here (high_priority in \
                 {PATH}): unset ALIYUN_COM_GPU_HIGH_PRIO, set nvidia.com/priority to 1, or leave \
                 highPriority out of the claim"
            )));
        }
        Ok(())
    }

    /// Returns what containers without a slice need of a file that is invalid: the next runtime,
    /// where it can be read and exists.
    #[must_use]
    pub fn salvaged(given: Option<&Path>) -> Self {
        let text = files::read_named(given.unwrap_or(Path::new(PATH))).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        // Line by line: another line may be no TOML at all.
        let tables = text.lines().filter_map(|line| line.parse::<toml::Table>().ok());
        let mut runtimes = tables.filter_map(|table| Some(table.get("runtime")?.as_str()?.into()));
        let runtime = runtimes.find(|runtime: &PathBuf| check_runtime(runtime).is_ok());
        Self { runtime, ..Self::default() }
    }

    /// Returns the path of the shim.
    ///
    /// # Errors
    /// It does not exist.
    pub fn shim(&self) -> Result<PathBuf> {
        match &self.shim {
            Some(shim) => shim
                .canonicalize()
                .with_context(|| format!("the shim {} does not exist", shim.display())),
            None => beside("libcgpu.so"),
        }
    }

    /// Returns the path of the monitor's program.
    ///
    /// # Errors
    /// It does not exist.
    pub fn monitor(&self) -> Result<PathBuf> {
        beside("cgpu-monitor")
    }

    /// Returns the path of a library of the simulated driver.
    ///
    /// # Errors
    /// It does not exist.
    pub fn simulated(&self, name: &str) -> Result<PathBuf> {
        beside(&format!("sim/{name}"))
    }

    /// Returns the folder of the simulated GPUs' states. The same list and root give the same GPUs
    /// as `cgpu run --sim`.
    #[must_use]
    pub fn states(&self) -> PathBuf {
        paths::simulated(&self.root)
    }
}

/// Returns the user outside of this user namespace, by its map. Rootless engines run this program
/// as root of a namespace, which must not use root's folders of the host.
fn outside(map: &str, user: u32) -> u32 {
    let ranges = map.lines().filter_map(|line| {
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??, numbers.next()??))
    });
    let mut ranges = ranges.filter_map(|(inside, outside, count)| {
        let offset = user.checked_sub(inside).filter(|offset| *offset < count)?;
        outside.checked_add(offset)
    });
    ranges.next().unwrap_or(user)
}

/// Returns whether the monitor's configuration file allows the limits of a GPU to add up to more
/// than it has. A file that is missing or not valid allows nothing.
#[must_use]
pub fn monitor_allows_overcommit(file: &Path) -> bool {
    #[derive(Deserialize)]
    struct Monitor {
        #[serde(default)]
        allow_overcommit: bool,
    }
    let text = files::read_named(file).ok().and_then(|text| String::from_utf8(text).ok());
    toml::from_str(&text.unwrap_or_default()).is_ok_and(|monitor: Monitor| monitor.allow_overcommit)
}

/// Returns the path of this program, for hooks.
///
/// # Errors
/// The system does not return it.
pub fn own_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find the path of this program")
}

/// Returns a built file beside this program, or where packages install libraries.
fn beside(name: &str) -> Result<PathBuf> {
    let program = own_program()?;
    let folder = program.parent().context("the path of this program has no folder")?;
    let candidates = [folder.join(name), folder.join("../lib/cgpu").join(name)];
    let found = candidates.iter().find(|file| file.exists());
    ensure!(
        found.is_some(),
        "{name} is neither in {} nor in ../lib/cgpu from there",
        folder.display()
    );
    Ok(found.unwrap_or(&candidates[0]).canonicalize()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overcommit_needs_the_monitors_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("monitor.toml");
        assert!(!monitor_allows_overcommit(&file), "no file");
        for (text, allows) in [
            ("", false),
            ("allow_overcommit = true", true),
            ("root = '/x'\nallow_overcommit = true\n[gpu.0]\npolicy = 2", true),
            ("allow_overcommit = false", false),
            ("allow_overcommit = 1", false),
            ("allow_overcommit = true\nnot toml", false),
        ] {
            fs::write(&file, text).unwrap();
            assert_eq!(monitor_allows_overcommit(&file), allows, "{text}");
        }
    }

    fn load(text: &str) -> Result<Config> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runtime.toml");
        fs::write(&path, text).unwrap();
        Config::load(Some(&path))
    }

    #[test]
    fn user_of_a_namespace_is_mapped_to_the_host() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        assert_eq!((outside(rootless, 0), outside(rootless, 5)), (1000, 100_004));
        assert_eq!(outside("         0          0 4294967295\n", 0), 0);
        assert_eq!((outside("", 0), outside("0 x", 7)), (0, 7));
    }

    #[test]
    fn valid_file_is_loaded() {
        assert_eq!(load("").unwrap().wall, Wall::Auto);
        assert_eq!(load("wall = 'auto'").unwrap().wall, Wall::Auto);
        assert_eq!(load("wall = 'required'").unwrap().wall, Wall::Required);
        let config = load("root = '/x'\nsim = 'T4:15109'\nruntime = '/bin/sh'").unwrap();
        assert_eq!(
            (config.root.as_path(), config.sim.as_deref()),
            (Path::new("/x"), Some("T4:15109"))
        );
        assert_eq!(config.states(), Path::new("/x/gpus"));
        assert_eq!(config.runtime.as_deref(), Some(Path::new("/bin/sh")));
        assert!(Config::load(Some(Path::new("/nowhere/runtime.toml"))).is_err());
    }

    #[test]
    fn invalid_line_is_refused_with_its_key() {
        for (text, why) in [
            ("root = '/x'\nsimm = 'T4'", "line 2: unknown field `simm`, expected one of"),
            ("sim = T4:15109", "line 1: sim: expected text in quotes"),
            ("sim = [\"T4:15109\"]", "line 1: sim: expected text in quotes"),
            ("sim = 'T4:15109MiB'", "line 1: sim: \"15109MiB\" in \"T4:15109MiB\" is not a size"),
            ("\n\nsim = 'T4 15109'", "line 3: sim: unknown model \"T4 15109\""),
            ("sim = 'T4'\nsim = 'A10'", "line 2: sim: duplicate key"),
            ("runtime = '/bin/rnuc'", "line 1: runtime: there is no program /bin/rnuc"),
            ("runtime = 'rnuc'", "line 1: runtime: the runtime rnuc is not in PATH"),
            ("[runtime]\nsim = 'T4'", "line 1: runtime: expected text in quotes"),
            ("shim = '/nowhere.so'", "line 1: shim: there is no file /nowhere.so"),
            ("ld_preload = yes", "line 1: ld_preload: expected true or false"),
            ("high_priority = 0", "line 1: high_priority: expected true or false"),
            ("wall = 'on'", "line 1: wall: expected \"auto\" or \"required\", found 'on'"),
            ("wall = 'off'", "line 1: wall: \"off\" belongs in monitor.toml"),
            ("wall = 1", "line 1: wall: expected \"auto\" or \"required\", found 1"),
            ("\nmax_weight = 26", "line 2: max_weight: expected 1 to 25, found 26"),
        ] {
            let wrong = format!("{:#}", load(text).unwrap_err());
            assert!(wrong.contains(&format!("runtime.toml, {why}")), "{text}: {wrong}");
        }
    }

    #[test]
    fn weight_and_priority_are_those_that_the_host_allows() {
        let host = load("max_weight = 5\nhigh_priority = false").unwrap();
        let limits = |weight, high_priority| Limits { weight, high_priority, ..Limits::default() };
        for (limits, share, why) in [
            (limits(5, false), false, None),
            (limits(6, false), false, Some("SCHD_WEIGHT is 6, and a container may have 5 here")),
            (limits(6, false), true, None),
            (limits(1, true), false, Some("no container has it here")),
            (limits(1, true), true, Some("no container has it here")),
        ] {
            let refused = host.permit(&limits, share).err().map(|refusal| refusal.to_string());
            assert_eq!(refused.is_some(), why.is_some(), "{refused:?}");
            assert!(refused.unwrap_or_default().contains(why.unwrap_or_default()));
            assert!(load("").unwrap().permit(&limits, share).is_ok());
        }
    }

    #[test]
    fn salvaged_file_has_an_existing_runtime_or_none() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("runtime.toml");
        for (text, runtime) in [
            ("runtime = '/bin/sh'\nsim = T4", Some(Path::new("/bin/sh"))),
            ("runtime = '/bin/rnuc'", None),
        ] {
            fs::write(&path, text).unwrap();
            assert_eq!(Config::salvaged(Some(&path)).runtime.as_deref(), runtime, "{text}");
        }
    }
}
