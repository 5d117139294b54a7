//! `/etc/cgpu/monitor.toml`: the monitor's configuration. Every key may be left out.
//!
//! ```toml
//! root = "/run/cgpu"          # containers and the socket
//! state = "/var/lib/cgpu"     # settings that survive a restart
//! tree = "/run/cgpu_km"       # where the control tree is mounted; "none": nowhere
//! nvml = "libnvidia-ml.so.1"
//! base_slice_ms = 6           # 2: less waiting, 10: fewer switches; left out: 6 to 10
//! time_scale = 1.0            # of a simulated GPU: 10 is ten times slower than real time
//! metrics = "127.0.0.1:9445"  # the metrics endpoint; "off": none
//! metrics_hami = false        # HAMi's names as well
//! page = "loopback"           # who gets the web page: "loopback", "network" or "off"
//! default_memsize = 0         # bytes for containers that come without a limit; 0: none
//! allow_overcommit = false    # limits may add up to more than the GPU has
//! end_unshimmed = false       # end containers' processes that use a GPU without the shim
//! over_limit = "report"       # "block": a container beyond limit and margin allocates nothing;
//!                             # "end": also end its largest processes after the grace period
//! over_limit_margin_mib = 1024 # for one process on the GPU; a quarter more for each other
//! over_limit_grace_s = 10
//! wall = "auto"               # the driver limits containers' control groups as well; "off": not
//! wall_margin_mib = 512       # by how much for a process; left out: by the largest context
//!
//! [gpu.0]                     # by index, or by UUID, which wins: [gpu."GPU-..."]
//! policy = 1
//! max_inst = 20
//! prio_ratio = 80
//! work_conserving = 0
//! base_slice_ms = 6
//! ```
//!
//! Settings in the control tree override it. An error names the file, the line, and what was
//! expected.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use cgpu_client::device_id::DeviceId;
use cgpu_scheduler::tuning::Tuning;
use cgpu_shm::paths;
use cgpu_shm::regular_file;
use cgpu_shm::units::{Bytes, Nanos};
use cgpu_shm::uuid::Uuid;
use serde::Deserialize;
use toml::Spanned;

use crate::metrics::{Endpoint, PageAccess};
use crate::settings::{GpuSettings, bounds};
use crate::watcher::{Action, OverLimit, Rules};

const DEFAULT_METRICS: &str = "127.0.0.1:9445";

/// Default directory of the settings, for root.
const DEFAULT_STATE: &str = "/var/lib/cgpu";
/// Default place of the control tree, for root.
const DEFAULT_TREE: &str = "/run/cgpu_km";
/// Value of `tree` for no control tree.
const NONE: &str = "none";

const BASE_SLICE_MS: RangeInclusive<u64> = 1..=20;
const OVER_LIMIT_MARGIN_MIB: RangeInclusive<u64> = 0..=1_048_576;
const OVER_LIMIT_GRACE_S: RangeInclusive<u64> = 1..=86_400;
const TIME_SCALE: RangeInclusive<f64> = 0.1..=1000.0;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Contents {
    root: Option<PathBuf>,
    state: Option<PathBuf>,
    tree: Option<PathBuf>,
    nvml: Option<String>,
    base_slice_ms: Option<Spanned<i64>>,
    time_scale: Option<Spanned<f64>>,
    default_memsize: Option<Spanned<i64>>,
    allow_overcommit: bool,
    end_unshimmed: bool,
    over_limit: Action,
    over_limit_margin_mib: Option<Spanned<i64>>,
    over_limit_grace_s: Option<Spanned<i64>>,
    wall: Option<Spanned<String>>,
    wall_margin_mib: Option<i64>,
    metrics: Option<Spanned<String>>,
    metrics_hami: bool,
    page: Option<Spanned<String>>,
    gpu: BTreeMap<Spanned<String>, GpuContents>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct GpuContents {
    policy: Option<Spanned<i64>>,
    max_inst: Option<Spanned<i64>>,
    prio_ratio: Option<Spanned<i64>>,
    work_conserving: Option<Spanned<i64>>,
    base_slice_ms: Option<Spanned<i64>>,
}

/// A file's name and text, to report the line of an error.
struct Source<'a> {
    name: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    fn wrong(&self, span: Option<Range<usize>>, what: &str) -> anyhow::Error {
        let before = span.and_then(|span| self.text.get(..span.start));
        match before.map(|before| before.matches('\n').count() + 1) {
            Some(line) => anyhow!("{}, line {line}: {what}", self.name.display()),
            None => anyhow!("{}: {what}", self.name.display()),
        }
    }

    fn number(
        &self,
        key: &str,
        value: Option<&Spanned<i64>>,
        bounds: &RangeInclusive<u64>,
    ) -> Result<Option<u64>> {
        let Some(value) = value else { return Ok(None) };
        match u64::try_from(*value.get_ref()).ok().filter(|value| bounds.contains(value)) {
            Some(value) => Ok(Some(value)),
            None => {
                let expected = if *bounds.end() == u64::MAX {
                    "a number of bytes".to_owned()
                } else {
                    format!("{} to {}", bounds.start(), bounds.end())
                };
                let what = format!("{key}: expected {expected}, found {}", value.get_ref());
                Err(self.wrong(Some(value.span()), &what))
            }
        }
    }

    /// Parses the address of the metrics endpoint, the loopback address by default.
    fn endpoint(&self, contents: &Contents) -> Result<Option<Endpoint>> {
        let page = self.page(contents.page.as_ref())?;
        let text = contents.metrics.as_ref();
        let value = text.map_or(DEFAULT_METRICS, |text| text.get_ref());
        if value == "off" {
            return Ok(None);
        }
        let listen = value.parse().map_err(|_| {
            let what = format!(
                "metrics: expected \"off\" or an address and port such as {DEFAULT_METRICS}, \
                 found {value:?}"
            );
            self.wrong(text.map(Spanned::span), &what)
        })?;
        Ok(Some(Endpoint { listen, hami: contents.metrics_hami, page }))
    }

    fn page(&self, text: Option<&Spanned<String>>) -> Result<PageAccess> {
        let Some(text) = text else { return Ok(PageAccess::default()) };
        Ok(match text.get_ref().as_str() {
            "off" => PageAccess::Off,
            "loopback" => PageAccess::Loopback,
            "network" => PageAccess::Network,
            other => {
                let what =
                    format!("page: expected \"loopback\", \"network\" or \"off\", found {other:?}");
                return Err(self.wrong(Some(text.span()), &what));
            }
        })
    }

    fn gpu(&self, text: &GpuContents) -> Result<GpuStart> {
        let small = |key, value: &Option<Spanned<i64>>, bounds| -> Result<Option<u32>> {
            let number = self.number(key, value.as_ref(), bounds)?;
            Ok(number.map(|number| u32::try_from(number).unwrap_or(u32::MAX)))
        };
        let settings = GpuSettings {
            policy: small("policy", &text.policy, &bounds::POLICY)?,
            max_inst: small("max_inst", &text.max_inst, &bounds::MAX_INST)?,
            prio_ratio: small("prio_ratio", &text.prio_ratio, &bounds::PRIO_RATIO)?,
            work_conserving: small("work_conserving", &text.work_conserving, &bounds::SWITCH)?
                .map(|value| value == 1),
        };
        let base = self.number("base_slice_ms", text.base_slice_ms.as_ref(), &BASE_SLICE_MS)?;
        Ok(GpuStart { settings, base: base.map(Nanos::from_millis) })
    }
}

/// How the file names a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Which {
    Index(DeviceId),
    Uuid(Uuid),
}

/// A GPU's initial settings, as far as they are configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GpuStart {
    settings: GpuSettings,
    base: Option<Nanos>,
}

/// Initial settings of each GPU and of all: the part that can be reloaded while the monitor runs.
#[derive(Clone, Debug, PartialEq)]
pub struct Start {
    gpus: BTreeMap<Which, GpuStart>,
    base: Option<Nanos>,
    percent: u32,
    /// Limit for containers that come without one; zero: none.
    pub default_memsize: Bytes,
    /// Whether the limits on a GPU may add up to more than it has.
    pub allow_overcommit: bool,
    /// Which processes the monitor ends.
    pub rules: Rules,
    /// The driver's memory limits.
    pub wall: WallConfig,
}

/// What is configured of the driver's memory limits for control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallConfig {
    /// Whether the monitor sets them.
    pub is_on: bool,
    /// By how much they exceed a container's limit for each process, in MiB; none: as measured. One
    /// below zero, or above a GPU's memory, starts no container there.
    pub margin_mib: Option<i64>,
}

impl Default for WallConfig {
    fn default() -> Self {
        Self { is_on: true, margin_mib: None }
    }
}

impl Default for Start {
    fn default() -> Self {
        Self {
            gpus: BTreeMap::new(),
            base: None,
            percent: 100,
            default_memsize: Bytes::ZERO,
            allow_overcommit: false,
            rules: Rules::default(),
            wall: WallConfig::default(),
        }
    }
}

impl Start {
    fn find(&self, index: DeviceId, uuid: Uuid) -> GpuStart {
        let of = |which| self.gpus.get(&which).copied().unwrap_or_default();
        let (own, by_index) = (of(Which::Uuid(uuid)), of(Which::Index(index)));
        GpuStart {
            settings: own.settings.over(by_index.settings),
            base: own.base.or(by_index.base),
        }
    }

    /// Returns a GPU's initial settings.
    #[must_use]
    pub fn gpu(&self, index: DeviceId, uuid: Uuid) -> GpuSettings {
        self.find(index, uuid).settings
    }

    /// Returns the times of a GPU's turns.
    #[must_use]
    pub fn tuning(&self, index: DeviceId, uuid: Uuid) -> Tuning {
        let base = self.find(index, uuid).base.or(self.base);
        base.map_or(Tuning::DEFAULT, |base| Tuning::DEFAULT.with_base(base)).scaled(self.percent)
    }
}

/// The monitor's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Holds `containers/` and `monitor.sock`.
    pub root: PathBuf,
    /// Holds `settings.json`.
    pub state: PathBuf,
    /// Where the control tree is mounted; none: nowhere.
    pub tree: Option<PathBuf>,
    /// The NVML library to load.
    pub nvml: String,
    /// Address of the metrics endpoint; none: no metrics.
    pub metrics: Option<Endpoint>,
    /// Initial settings.
    pub start: Start,
    /// Where it was read from, for a reload.
    pub source: Sources,
}

/// Command-line options, which override the file.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file; none: [`paths::MONITOR_CONFIG`], if it exists.
    pub path: Option<PathBuf>,
    /// See [`Config::root`].
    pub root: Option<PathBuf>,
    /// See [`Config::tree`]; `none`: nowhere.
    pub tree: Option<PathBuf>,
}

impl Config {
    /// Reads the file if there is one. Command-line options override it.
    ///
    /// # Errors
    /// When a file that the caller named is missing, the file cannot be parsed, a value is out of
    /// range, or no root is known.
    pub fn load(source: Sources) -> Result<Self> {
        let name = source.path.clone().unwrap_or_else(|| paths::MONITOR_CONFIG.into());
        let text = match regular_file::read_to_string(&name) {
            Err(error) if source.path.is_none() && error.kind() == ErrorKind::NotFound => {
                String::new()
            }
            text => text.with_context(|| format!("cannot read {}", name.display()))?,
        };
        let file = Source { name: &name, text: &text };
        let contents: Contents =
            toml::from_str(&text).map_err(|error| file.wrong(error.span(), error.message()))?;
        let user = rustix::process::geteuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let root = paths::monitor_root(
            source.root.as_deref().or(contents.root.as_deref()),
            user,
            runtime.as_deref(),
        )?;
        let root = std::path::absolute(&root)?;
        let is_host = root == Path::new(paths::RUN);
        let tree = source.tree.clone().or(contents.tree.clone());
        let tree = tree
            .unwrap_or_else(|| if is_host { DEFAULT_TREE.into() } else { root.join("cgpu_km") });
        Ok(Self {
            state: contents
                .state
                .clone()
                .unwrap_or_else(|| if is_host { DEFAULT_STATE.into() } else { root.join("state") }),
            tree: if tree == Path::new(NONE) { None } else { Some(std::path::absolute(tree)?) },
            root,
            nvml: contents.nvml.clone().unwrap_or_else(|| "libnvidia-ml.so.1".into()),
            metrics: file.endpoint(&contents)?,
            start: Self::start(&file, &contents)?,
            source,
        })
    }

    fn start(file: &Source<'_>, contents: &Contents) -> Result<Start> {
        let base = file.number("base_slice_ms", contents.base_slice_ms.as_ref(), &BASE_SLICE_MS)?;
        let scale = contents.time_scale.as_ref().map_or(1.0, |scale| *scale.get_ref());
        if !TIME_SCALE.contains(&scale) {
            let what = format!("time_scale: expected 0.1 to 1000, found {scale}");
            return Err(file.wrong(contents.time_scale.as_ref().map(Spanned::span), &what));
        }
        let mut gpus = BTreeMap::new();
        for (name, text) in &contents.gpu {
            let which = match (name.get_ref().parse(), name.get_ref().parse()) {
                (Ok(index), _) => Which::Index(index),
                (_, Ok(uuid)) => Which::Uuid(uuid),
                _ => {
                    let what = format!(
                        "expected a GPU's index such as 0 or \"0.1\", or its UUID such as GPU-..., \
                         found {:?}",
                        name.get_ref()
                    );
                    return Err(file.wrong(Some(name.span()), &what));
                }
            };
            gpus.insert(which, file.gpu(text)?);
        }
        let memsize =
            file.number("default_memsize", contents.default_memsize.as_ref(), &bounds::BYTES)?;
        // Checked just above.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let percent = (scale * 100.0) as u32;
        Ok(Start {
            gpus,
            base: base.map(Nanos::from_millis),
            percent,
            default_memsize: Bytes(memsize.unwrap_or(0)),
            allow_overcommit: contents.allow_overcommit,
            rules: Rules {
                end_unshimmed: contents.end_unshimmed,
                over_limit: Self::over_limit(file, contents)?,
            },
            wall: Self::wall(file, contents)?,
        })
    }

    fn wall(file: &Source<'_>, contents: &Contents) -> Result<WallConfig> {
        let word = contents.wall.as_ref().map_or("auto", |word| word.get_ref());
        let is_on = match word {
            "auto" => true,
            "off" => false,
            other => {
                let hint = match other {
                    "required" => "; required is a word of runtime.toml, which starts containers",
                    _ => "",
                };
                let what = format!("wall: expected \"auto\" or \"off\", found {other:?}{hint}");
                return Err(file.wrong(contents.wall.as_ref().map(Spanned::span), &what));
            }
        };
        Ok(WallConfig { is_on, margin_mib: contents.wall_margin_mib })
    }

    fn over_limit(file: &Source<'_>, contents: &Contents) -> Result<OverLimit> {
        let margin = contents.over_limit_margin_mib.as_ref();
        let margin = file.number("over_limit_margin_mib", margin, &OVER_LIMIT_MARGIN_MIB)?;
        let grace = contents.over_limit_grace_s.as_ref();
        let grace = file.number("over_limit_grace_s", grace, &OVER_LIMIT_GRACE_S)?;
        Ok(OverLimit {
            action: contents.over_limit,
            margin: margin.map_or(OverLimit::MARGIN, Bytes::from_mib),
            grace: grace.map_or(OverLimit::GRACE, |s| Nanos::from_millis(1000 * s)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn load(text: &str) -> Result<Config> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("monitor.toml");
        fs::write(&path, text).unwrap();
        Config::load(Sources { path: Some(path), ..Sources::default() })
    }

    #[test]
    fn wall_is_on_off_or_explained() {
        let wall = |text: &str| load(&format!("root = '/x'\n{text}")).map(|it| it.start.wall);
        assert_eq!(wall("").unwrap(), WallConfig { is_on: true, margin_mib: None });
        assert_eq!(wall("wall = 'auto'").unwrap(), WallConfig::default());
        assert!(!wall("wall = 'off'").unwrap().is_on);
        for margin in [-1, 0, 1 << 60] {
            let config = wall(&format!("wall_margin_mib = {margin}")).unwrap();
            assert_eq!(config.margin_mib, Some(margin), "judged for each GPU");
        }
        for (text, expected) in [
            ("wall = 'required'", "runtime.toml"),
            ("wall = 'on'", "expected \"auto\" or \"off\", found \"on\""),
            ("wall_margin_mib = 'much'", "expected i64"),
        ] {
            let error = wall(text).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("line 2"), "{error}");
        }
    }

    #[test]
    fn configured_values_are_used() {
        let config = load("root = '/x'\nbase_slice_ms = 10\ntime_scale = 2").unwrap();
        assert_eq!(config.root, Path::new("/x"));
        assert_eq!(config.state, Path::new("/x/state"));
        assert_eq!(config.tree.as_deref(), Some(Path::new("/x/cgpu_km")));
        assert_eq!(
            config.start.tuning(DeviceId::default(), Uuid([1; 16])).base_slice,
            Nanos::from_millis(20)
        );
        assert_eq!(load("root = '/x'\ntree = 'none'").unwrap().tree, None);
        assert_eq!(config.metrics.unwrap().listen.to_string(), DEFAULT_METRICS);
        assert_eq!(load("root = '/x'\nmetrics = 'off'").unwrap().metrics, None);
        for (line, page) in [
            ("", PageAccess::Loopback),
            ("page = 'loopback'", PageAccess::Loopback),
            ("page = 'network'", PageAccess::Network),
            ("page = 'off'", PageAccess::Off),
        ] {
            let config = load(&format!("root = '/x'\n{line}")).unwrap();
            assert_eq!(config.metrics.unwrap().page, page, "{line}");
        }
        let contents =
            load("root = '/x'\nmetrics = '[::1]:1'\nmetrics_hami = true").unwrap().metrics.unwrap();
        assert!(contents.hami && contents.listen.port() == 1);
        assert_eq!(
            load("root = '/x'\ntree = '/t'").unwrap().tree.as_deref(),
            Some(Path::new("/t"))
        );
    }

    #[test]
    fn gpus_start_as_configured_by_uuid_before_index() {
        let uuid = Uuid([1; 16]);
        let text = format!(
            "root = '/x'\n[gpu.0]\npolicy = 3\nmax_inst = 4\nbase_slice_ms = 2\n\
             [gpu.\"{uuid}\"]\npolicy = 5\nwork_conserving = 1\n"
        );
        let start = load(&text).unwrap().start;
        let gpu = start.gpu(DeviceId::default(), uuid);
        assert_eq!((gpu.policy, gpu.max_inst, gpu.prio_ratio()), (Some(5), Some(4), 80));
        assert!(gpu.work_conserving());
        assert_eq!(start.tuning(DeviceId::default(), uuid).base_slice, Nanos::from_millis(2));
        assert_eq!(start.gpu(DeviceId::of_gpu(1), Uuid([2; 16])), GpuSettings::default());
        // An instance has its own settings, not its GPU's.
        let instance = |start: &Start| start.gpu(DeviceId::of_instance(0, 1), Uuid([3; 16])).policy;
        assert_eq!(instance(&start), None);
        assert_eq!(
            instance(&load("root = '/x'\n[gpu.\"0.1\"]\npolicy = 4").unwrap().start),
            Some(4)
        );
        assert_eq!(start.tuning(DeviceId::of_gpu(1), Uuid([2; 16])), Tuning::DEFAULT);
    }

    #[test]
    fn container_over_its_limit_is_reported_unless_configured_otherwise() {
        let rule =
            |text: &str| load(&format!("root = '/x'\n{text}")).unwrap().start.rules.over_limit;
        assert_eq!(rule(""), OverLimit::default());
        assert_eq!(rule("").action, Action::Report);
        assert_eq!(
            rule("over_limit = 'end'\nover_limit_margin_mib = 64\nover_limit_grace_s = 30"),
            OverLimit {
                action: Action::End,
                margin: Bytes::from_mib(64),
                grace: Nanos::from_millis(30_000)
            }
        );
        assert_eq!(rule("over_limit = 'block'").action, Action::Block);
    }

    #[test]
    fn invalid_configuration_names_the_line_and_what_was_expected() {
        for (text, message) in [
            ("rooot = '/x'", "line 1: unknown field `rooot`"),
            ("root = '/x'\nbase_slice_ms = 0", "line 2: base_slice_ms: expected 1 to 20, found 0"),
            (
                "root = '/x'\n\ntime_scale = 0.0",
                "line 3: time_scale: expected 0.1 to 1000, found 0",
            ),
            ("root", "line 1: "),
            ("root = '/x'\n[gpu.0]\npolicy = 6", "line 3: policy: expected 0 to 5, found 6"),
            ("root = '/x'\n[gpu.0]\nmax_inst = 26", "line 3: max_inst: expected 1 to 25, found 26"),
            (
                "root = '/x'\n[gpu.0]\n\nprio_ratio = -1",
                "line 4: prio_ratio: expected 20 to 99, found -1",
            ),
            (
                "root = '/x'\n[gpu.0]\nwork_conserving = 2",
                "line 3: work_conserving: expected 0 to 1",
            ),
            ("root = '/x'\n[gpu.0]\npolicy = 'fair'", "line 3: invalid type: string"),
            ("root = '/x'\n[gpu.0]\ncolour = 3", "line 3: unknown field `colour`"),
            (
                "root = '/x'\n[gpu.first]\npolicy = 1",
                "line 2: expected a GPU's index such as 0 or \"0.1\", or its UUID",
            ),
            (
                "root = '/x'\ndefault_memsize = -5",
                "line 2: default_memsize: expected a number of bytes",
            ),
            (
                "root = '/x'\nover_limit_margin_mib = -1",
                "line 2: over_limit_margin_mib: expected 0 to 1048576, found -1",
            ),
            (
                "root = '/x'\nover_limit = 'kill'",
                "line 2: unknown variant `kill`, expected one of `report`, `block`, `end`",
            ),
            (
                "root = '/x'\nover_limit_grace_s = 0",
                "line 2: over_limit_grace_s: expected 1 to 86400, found 0",
            ),
            ("root = '/x'\nend_unshimmed = 1", "line 2: invalid type: integer"),
            (
                "root = '/x'\nmetrics = '9445'",
                "line 2: metrics: expected \"off\" or an address and port",
            ),
            ("root = '/x'\nallow_overcommit = 1", "line 2: invalid type: integer"),
            (
                "root = '/x'\npage = 'on'",
                "line 2: page: expected \"loopback\", \"network\" or \"off\", found \"on\"",
            ),
            ("root = '/x'\nmetrics = 'off'\npage = ''", "line 3: page: expected"),
        ] {
            let error = format!("{:#}", load(text).unwrap_err());
            assert!(error.contains("monitor.toml, ") && error.contains(message), "{text}: {error}");
        }
        let missing = Sources { path: Some("/nowhere/monitor.toml".into()), ..Sources::default() };
        assert!(Config::load(missing).is_err());
    }
}
