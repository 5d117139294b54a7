//! Prepares a container before the next runtime makes it.

use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use anyhow::{Context, Result, bail};
use cgpu_client::Client;
use cgpu_kubernetes_core::binding::LIMIT_VARIABLES;
use cgpu_shm::limits::Limits;
use cgpu_shm::paths;
use oci_spec::runtime::Mount;

use crate::binding;
use crate::bundle::{self, Bundle};
use crate::config::{self, Config, SIMULATED};
use crate::edit::{self, Additions, Configuration, HOOKS, OWN_HOOKS, SHIM, bind, hook};
use crate::files::{self, Files};
use crate::folder::{Folder, FolderSpec, GpuCapacity};
use crate::gpus::{self, NoInventory};
use crate::handover::{self, Level};
use crate::hook::created;
use crate::image::{self, Image};
use crate::invocation::Invocation;
use crate::named::Named;
use crate::plan::{Declared, HostGpu, Plan, Refusal, name_of, plan};
use crate::share;
use crate::verify;
use crate::wall::{self, Wall};

/// The folder with the states of simulated GPUs, inside.
const STATES: &str = "sim";
/// The file in a container's folder with its mounts, for the hooks.
pub(crate) const MOUNTS: &str = "mounts";
/// A container without a filter of system calls.
const NO_SECCOMP: &str = "the container has no seccomp filter, so its programs may hide cgpu's \
    files from themselves (unshare, mount) and leave their limits; use the engine's default profile";
/// A link to the state that the simulated driver uses if no variable names one.
const STATE: &str = "simulated";

/// What was done to a container's configuration.
#[derive(Debug)]
pub enum Prepared {
    /// Nothing.
    Untouched,
    /// A pod gets its GPUs without a limit: the node does not enforce limits.
    Gpus,
    /// It has a slice.
    Slice(Slice),
}

/// Returns whether a container surely requests neither a slice nor a pod's GPUs, whatever the
/// configuration on this host says.
#[must_use]
pub fn requests_nothing(invocation: &Invocation) -> bool {
    let is_plain = |bundle: Bundle| {
        let configuration = bundle.read().ok()?;
        let bound = binding::bound(&configuration, &Config::default()).ok()?;
        let variables = configuration.variables();
        let declared = Declared::new(&variables).ok()?;
        Some(bound.is_none() && !declared.request_memory())
    };
    Bundle::of(invocation).ok().and_then(is_plain).unwrap_or(false)
}

/// Prepares a slice for the container, if its variables request one.
///
/// # Errors
/// The container must not be started; the message says why.
pub fn prepare(invocation: &Invocation, config: &Config) -> Result<Prepared> {
    let bundle = Bundle::of(invocation)?;
    let mut original = bundle.read()?;
    let was_edited = original.remove_former();
    let bound = binding::bound(&original, config)?;
    let is_bound = bound.is_some();
    let configuration = bound.unwrap_or(original);
    let variables = configuration.variables();
    let names = variables.iter().filter_map(|variable| Some(variable.split_once('=')?.0));
    for message in names.filter_map(cgpu_settings::misspelling) {
        handover::report(Some(invocation), Level::Warning, &message);
    }
    // The hooks of its shares make its slice, whatever its variables say.
    let has_shares = !configuration.shares().is_empty();
    let slice = if !has_shares && Declared::new(&variables)?.request_memory() {
        let id = invocation.id.as_deref().context("the container has no id")?;
        // Some runtimes do not run hooks when they restore, and then the first process is not
        // recorded.
        let stays = invocation.command.as_deref() != Some("restore");
        Slice::make(&bundle, &configuration, config, id, stays)?
    } else {
        None
    };
    let Some(slice) = slice else {
        if is_bound || was_edited {
            bundle.write(&configuration)?;
        }
        return Ok(if is_bound { Prepared::Gpus } else { Prepared::Untouched });
    };
    if !configuration.has_seccomp() {
        handover::report(Some(invocation), Level::Warning, NO_SECCOMP);
    }
    let mut configuration = configuration;
    if configuration.remove_variables(&wall::VARIABLES) {
        handover::report(Some(invocation), Level::Warning, wall::REMOVED);
    }
    let written = slice
        .added_to(configuration, config, needed_hooks(invocation))
        .and_then(|configuration| bundle.write(&configuration));
    if let Err(error) = written {
        let _ = slice.folder.remove();
        return Err(error);
    }
    Ok(Prepared::Slice(slice))
}

/// Returns which of [`edit::OWN_HOOKS`] a configuration needs. Each is a process that the next
/// runtime waits for.
fn needed_hooks(invocation: &Invocation) -> [bool; 3] {
    // After `create`, this process is still there.
    let starts = invocation.command.as_deref() != Some("create");
    // Engines name a file for the first process, and delete through `cgpu-runtime`. But podman
    // deletes without its own `--runtime-flag`, and so without the configuration given there: the
    // hook finds the folder.
    let stops = starts || invocation.pid_file.is_none() || invocation.config.is_some();
    [starts, starts, stops]
}

/// Does what the hooks would do, after a container is made and before it is started.
///
/// # Errors
/// The container must not be started.
pub fn follow(invocation: &Invocation, config: &Config, next: &Path, slice: &Slice) -> Result<()> {
    let pid = first_process(invocation, next)?;
    verify::check(pid, &slice.mounts)?;
    created(&config.root, &slice.folder, Some(pid))
}

fn first_process(invocation: &Invocation, next: &Path) -> Result<i32> {
    let Some(file) = invocation.pid_file.as_deref() else {
        let state = handover::state(next, invocation).context("the next runtime has no state")?;
        return state.pid().context("the container's state has no process id");
    };
    let text =
        files::read_named(file).with_context(|| format!("cannot read {}", file.display()))?;
    let pid = std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok());
    pid.with_context(|| format!("{} has no process id", file.display()))
}

/// Prepares a process that an engine starts in a running container: with the preload variable, if
/// the container's programs get the shim by a variable; in a pod, with the variables of its slice,
/// since the engine knows only those from before the plugin's answer.
///
/// # Errors
/// The process cannot be parsed or written.
pub fn prepare_exec(invocation: &Invocation, folder: Option<&Folder>, next: &Path) -> Result<()> {
    let Some(file) = invocation.process.as_deref() else { return Ok(()) };
    let preloads = folder.is_some_and(Folder::preloads_by_variable);
    let has_slice = folder.is_some_and(Folder::exists);
    let mut text = match files::read_named(file) {
        Err(_) if !preloads => return Ok(()),
        text => text.with_context(|| format!("cannot read {}", file.display()))?,
    };
    // Variables describe a slice but do not enforce it, so a configuration that cannot be read does
    // not fail a probe.
    let state = binding::names_slice(&text).then(|| handover::state(next, invocation)).flatten();
    let slice = state.and_then(|state| Bundle::at(state.bundle()).read().ok());
    if let Some(slice) = &slice {
        text = edit::bound_as(&text, slice, &LIMIT_VARIABLES)?;
    }
    if preloads {
        text = edit::preloading(&text, SHIM)?;
    }
    let without = has_slice.then(|| edit::without(&text, &wall::VARIABLES)).transpose()?.flatten();
    let is_changed = preloads || slice.is_some() || without.is_some();
    if let Some(without) = without {
        handover::report(Some(invocation), Level::Warning, wall::REMOVED);
        text = without;
    }
    if is_changed { bundle::replace(file, &text) } else { Ok(()) }
}

/// A slice that is ready: its folder and its mounts.
#[derive(Debug)]
pub struct Slice {
    /// The container's folder.
    pub folder: Folder,
    /// Mounts, in order.
    pub mounts: Vec<Mount>,
    /// Whether the image's loader reads a file that names the shim; else a variable does.
    pub by_file: bool,
}

impl Slice {
    /// Makes a slice, if the variables request one. `stays` is [`FolderSpec::stays`] of this
    /// process.
    ///
    /// # Errors
    /// As for [`prepare`].
    pub fn make(
        bundle: &Bundle,
        configuration: &Configuration,
        config: &Config,
        id: &str,
        stays: bool,
    ) -> Result<Option<Self>> {
        let variables = configuration.variables();
        let declared = Declared::new(&variables)?;
        let named = Named::of(configuration, bundle.folder(), id);
        let planned = Planned::of(&declared, config, named.name.as_deref().unwrap_or(id))?;
        let make = |planned| {
            Self::planned(&Start { bundle, configuration, config, id, named, stays }, planned, &[])
        };
        planned.map(make).transpose()
    }

    /// Makes the slice of a container with these shares, which are sorted.
    ///
    /// # Errors
    /// As for [`prepare`].
    pub fn of_shares(
        bundle: &Bundle,
        configuration: &Configuration,
        config: &Config,
        id: &str,
        shares: &[String],
    ) -> Result<Self> {
        let named = Named::of(configuration, bundle.folder(), id);
        let name = name_of(named.name.as_deref().unwrap_or(id));
        let limits = Limits { name, ..share::limits(&config.root, shares)? };
        let planned = Planned::with(limits, config)?;
        let start = Start { bundle, configuration, config, id, named, stays: true };
        Self::planned(&start, planned, shares)
    }

    fn planned(start: &Start<'_>, planned: Planned, shares: &[String]) -> Result<Self> {
        let Start { bundle, configuration, config, id, .. } = *start;
        let Planned { limits, gpus, overcommit, monitor_hangs } = planned;
        config.permit(&limits, !shares.is_empty())?;
        let shim = config.shim()?;
        let root =
            bundle.root(configuration).context("config.json of the container has no root")?;
        if !configuration.has_own_mounts() {
            return Err(Refusal(
                "ALIYUN_COM_GPU_MEM_CONTAINER requests a limit that cannot be enforced: the \
                 container has no mount namespace of its own; give it one"
                    .into(),
            )
            .into());
        }
        let files = Files::new(&root, bundle.mounts(configuration))
            .with_context(|| format!("cannot read the files of {}", root.display()))?;
        let image = loadable_image(&files, &shim, config)?;
        let folder = Folder::make(&FolderSpec {
            root: &config.root,
            id,
            shares,
            bundle: bundle.folder(),
            image: start.named.image.as_deref(),
            pod: start.named.pod.as_ref(),
            limits: &limits,
            gpus: &capacities(&gpus),
            overcommit,
            stays: start.stays,
            monitor_hangs,
            requires_wall: config.wall == Wall::Required,
        })?;
        let ready = mounts(&folder, config, &files, &image, &shim).and_then(|(mounts, by_file)| {
            check_visible(configuration, &files, &mounts)?;
            Ok((mounts, by_file))
        });
        match ready {
            Ok((mounts, by_file)) => Ok(Self { folder, mounts, by_file }),
            Err(error) => {
                let _ = folder.remove();
                Err(error)
            }
        }
    }

    /// Returns the configuration with the mounts, and with the hooks that are needed.
    fn added_to(
        &self,
        configuration: Configuration,
        config: &Config,
        needed: [bool; 3],
    ) -> Result<Configuration> {
        let program = config::own_program()?;
        let root = config.root.to_string_lossy();
        let hooks = OWN_HOOKS.iter().zip(HOOKS).zip(needed).filter(|(_, needed)| *needed);
        let hooks = hooks.map(|((what, list), _)| (list, hook(&program, &[what, "--root", &root])));
        let hooks: Vec<_> = hooks.collect();
        if !hooks.is_empty() {
            self.write_mounts()?;
        }
        Ok(configuration.with(&Additions {
            mounts: self.mounts.clone(),
            hooks,
            preload: (!self.by_file).then(|| SHIM.to_owned()),
        }))
    }

    /// Writes its mounts into its folder, for the hooks.
    ///
    /// # Errors
    /// As the system says.
    pub fn write_mounts(&self) -> Result<()> {
        self.folder.put_own(MOUNTS, &serde_json::to_vec(&self.mounts)?, 0o644)?;
        Ok(())
    }
}

/// The container that a slice is made for.
struct Start<'a> {
    bundle: &'a Bundle,
    configuration: &'a Configuration,
    config: &'a Config,
    id: &'a str,
    named: Named,
    /// [`FolderSpec::stays`] of this process.
    stays: bool,
}

/// The limits of a slice and the host's GPUs.
struct Planned {
    limits: Limits,
    /// All GPUs of the host.
    gpus: Vec<HostGpu>,
    /// Whether limits may add up to more than a GPU has.
    overcommit: bool,
    /// Whether the monitor did not answer in time.
    monitor_hangs: bool,
}

impl Planned {
    /// Plans with the monitor's inventory. If that gives no slice, or there is no monitor, plans
    /// with NVML's. Returns `None` if there is no limit.
    fn of(declared: &Declared<'_>, config: &Config, name: &str) -> Result<Option<Self>, Refusal> {
        let (mut reported, mut monitor_hangs) = (None, false);
        let by_monitor = || match gpus::by_monitor(config) {
            Ok(known) => Ok(reported.insert(known).gpus.clone()),
            Err(why) => {
                monitor_hangs = why == NoInventory::Hangs;
                Err(Refusal("the monitor has no inventory".into()))
            }
        };
        let planned = plan(declared, name, by_monitor);
        if let (Ok(Plan::Slice(limits)), Some(reported)) = (planned, reported) {
            let (gpus, overcommit) = (reported.gpus, reported.overcommit);
            return Ok(Some(Self { limits, gpus, overcommit, monitor_hangs }));
        }
        let mut found = Vec::new();
        let by_nvml = || {
            found = gpus::by_nvml(config).map_err(|error| {
                Refusal(format!("ALIYUN_COM_GPU_MEM_CONTAINER requests a limit, but {error:#}"))
            })?;
            Ok(found.clone())
        };
        Ok(match plan(declared, name, by_nvml)? {
            Plan::Native => None,
            Plan::Slice(limits) => {
                let overcommit = allows_overcommit(&config.root, monitor_hangs);
                Some(Self { limits, gpus: found, overcommit, monitor_hangs })
            }
        })
    }
}

impl Planned {
    /// Plans limits that are known.
    fn with(limits: Limits, config: &Config) -> Result<Self> {
        let is_complete = |gpus: &[HostGpu]| {
            limits.gpus.iter().all(|(uuid, _)| gpus.iter().any(|gpu| gpu.gpu.uuid == *uuid))
        };
        let monitor_hangs = match gpus::by_monitor(config) {
            Ok(known) if is_complete(&known.gpus) => {
                let (gpus, overcommit) = (known.gpus, known.overcommit);
                return Ok(Self { limits, gpus, overcommit, monitor_hangs: false });
            }
            known => known.is_err_and(|why| why == NoInventory::Hangs),
        };
        let gpus = gpus::by_nvml(config)?;
        if !is_complete(&gpus) {
            bail!(Refusal("this node does not have the GPU of the container's share".into()));
        }
        let overcommit = allows_overcommit(&config.root, monitor_hangs);
        Ok(Self { limits, gpus, overcommit, monitor_hangs })
    }
}

/// Returns the image, if the shim can be loaded into its programs.
fn loadable_image(files: &Files, shim: &Path, config: &Config) -> Result<Image> {
    let image = Image::of(files).context("cannot read the image's C library")?;
    let needed = image::needed(shim).with_context(|| format!("cannot read {}", shim.display()))?;
    // The loader ignores a library that it cannot read.
    if needed.is_none() || std::fs::metadata(shim)?.mode() & 0o004 == 0 {
        bail!(Refusal(format!(
            "{} is not a library that all users can load: install libcgpu.so again",
            shim.display()
        )));
    }
    let why = match &image {
        Image::Glibc { version, .. } => match needed {
            Some(needed) if needed > *version => {
                format!("the image has glibc {version}, and libcgpu.so needs {needed}")
            }
            // A user who sets variables, or clears them as a login does, would have the GPU without
            // the shim.
            _ if image.preloads().is_empty() && !config.ld_preload => {
                "the image's loader reads no /etc/ld.so.preload (ld_preload = true in the \
                 runtime's configuration starts it with LD_PRELOAD, which its programs may unset)"
                    .into()
            }
            _ => return Ok(image),
        },
        Image::Musl => "the image has musl, and libcgpu.so needs glibc".into(),
        Image::Bare => "the image has no glibc, which libcgpu.so needs".into(),
    };
    bail!(Refusal(format!(
        "ALIYUN_COM_GPU_MEM_CONTAINER requests a limit that cannot be enforced: {why}; use an \
         image with glibc {} or newer, or leave the variable out",
        needed.unwrap_or(image::Version(2, 17))
    )))
}

/// Checks that none of the mounts is hidden: paths are masked after all mounts.
fn check_visible(configuration: &Configuration, files: &Files, mounts: &[Mount]) -> Result<()> {
    let ours: Vec<_> =
        mounts.iter().map(|mount| files.resolve(mount.destination())).collect::<Result<_, _>>()?;
    for masked in configuration.masked() {
        let path = files
            .resolve(masked)
            .with_context(|| format!("cannot resolve {}", masked.display()))?;
        // The limits are below the container's folder; elsewhere cgpu mounts only files.
        let hides = |own: &std::path::PathBuf| own.starts_with(&path) || path.starts_with(own);
        if ours.iter().any(hides) {
            bail!(Refusal(format!(
                "ALIYUN_COM_GPU_MEM_CONTAINER requests a limit that cannot be enforced: the \
                 container's configuration masks {}; remove it from maskedPaths",
                masked.display()
            )));
        }
    }
    Ok(())
}

/// Returns the mounts of a slice, and whether the image's loader then preloads the shim.
fn mounts(
    folder: &Folder,
    config: &Config,
    files: &Files,
    image: &Image,
    shim: &Path,
) -> Result<(Vec<Mount>, bool)> {
    let Image::Glibc { libraries, preloads, .. } = image else { bail!("the image has no glibc") };
    let read_only = ["ro", "noexec"];
    let writable = ["rw", "noexec"];
    let own = |name: &str| folder.path().join(name);
    let inside = |name: &str| format!("{}/{name}", paths::RUN);
    // The folder is read-only, so that none of its files, above all the limits, can be replaced.
    let mut mounts = vec![
        bind(folder.path(), paths::RUN, &read_only),
        bind(&own("use"), &inside("use"), &writable),
        bind(&own("refused"), &inside("refused"), &writable),
        bind(shim, SHIM, &["ro"]),
    ];
    for name in preloads {
        let present =
            files.read(name).with_context(|| format!("cannot read the image's {name}"))?;
        let text = image::merged(SHIM, &present.unwrap_or_default());
        let own = name.trim_start_matches("/etc/");
        let file = folder.put_own(own, &text, 0o644)?;
        mounts.push(bind(&file, name, &read_only));
    }
    if let Some(list) = &config.sim {
        mounts.extend(simulator(folder, config, list, libraries)?);
    }
    Ok((mounts, !preloads.is_empty()))
}

/// Returns the mounts of the simulated driver, in a default folder of the loader.
fn simulator(folder: &Folder, config: &Config, list: &str, libraries: &Path) -> Result<Vec<Mount>> {
    folder.make_folder(STATES)?;
    let state = folder.path().join(STATE);
    // Another container with the same shares may have made it.
    if !state.is_symlink() {
        symlink(Path::new(STATES).join(paths::simulated_name(list)), state)?;
    }
    let mut mounts =
        vec![bind(&config.states(), &format!("{}/{STATES}", paths::RUN), &["rw", "noexec"])];
    for name in SIMULATED {
        let library = config.simulated(name)?;
        mounts.push(bind(&library, &libraries.join(name).to_string_lossy(), &["ro"]));
    }
    Ok(mounts)
}

fn capacities(gpus: &[HostGpu]) -> Vec<GpuCapacity> {
    let capacities =
        |gpu: &HostGpu| GpuCapacity { uuid: gpu.gpu.uuid, id: gpu.id, total: gpu.gpu.total };
    gpus.iter().map(capacities).collect()
}

/// Returns whether limits may exceed a GPU: from the running monitor; without one, or if it does
/// not answer, from its configuration file.
fn allows_overcommit(root: &Path, monitor_hangs: bool) -> bool {
    let status = || {
        let socket = paths::socket(root);
        Client::connect_within(&socket, gpus::MONITOR_TIMEOUT)?.status()
    };
    match (!monitor_hangs).then(status) {
        Some(Ok(status)) => status.allow_overcommit,
        _ => config::monitor_allows_overcommit(Path::new(paths::MONITOR_CONFIG)),
    }
}
