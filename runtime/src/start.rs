//! Everything up to the hand-over of a container that is to be made.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use cgpu_monitor::client::Client;
use cgpu_monitor::config::{Config as MonitorConfig, Sources};
use cgpu_proto::paths;
use oci_spec::runtime::Mount;

use crate::bundle::Bundle;
use crate::cards;
use crate::config::{self, Config};
use crate::edit::{Additions, Configuration, bind, hook};
use crate::folder::{Folder, Order, Supply};
use crate::image::{self, Files, Image, PRELOAD};
use crate::invocation::Invocation;
use crate::named::Named;
use crate::plan::{Declared, HostCard, Plan, Refusal, plan};

/// The shim, inside.
const SHIM: &str = "/run/cgpu/libcgpu.so";
/// The simulated cards' states, inside: one of them is called by a link beside.
const STATES: &str = "sim";
/// That link, which the simulated driver looks for where no variable names a state.
const STATE: &str = "simulated";

/// Makes a slice ready for the container, if its variables ask for one; None: it is not ours.
///
/// # Errors
/// It must not be started; the sentence says why.
pub fn prepare(invocation: &Invocation, config: &Config) -> Result<Option<Folder>> {
    let bundle = Bundle::of(invocation)?;
    let configuration = bundle.read()?;
    let variables = configuration.variables();
    if !Declared::new(&variables)?.asks() {
        return Ok(None);
    }
    let id = invocation.id.as_deref().context("the container has no id")?;
    let Some(slice) = Slice::make(&bundle, &configuration, config, id)? else { return Ok(None) };
    let written = slice.hooked(configuration, config).and_then(|configuration| bundle.write(&configuration));
    if let Err(error) = written {
        let _ = slice.folder.remove();
        return Err(error);
    }
    Ok(Some(slice.folder))
}

/// A slice that is ready: its folder, and what is to be mounted.
#[derive(Debug)]
pub struct Slice {
    /// The container's folder.
    pub folder: Folder,
    /// Mounts, in order.
    pub mounts: Vec<Mount>,
    /// The image's loader reads `ld.so.preload`.
    pub reads_preload: bool,
}

impl Slice {
    /// Makes it, if the variables ask for one.
    ///
    /// # Errors
    /// As for [`prepare`].
    pub fn make(
        bundle: &Bundle,
        configuration: &Configuration,
        config: &Config,
        id: &str,
    ) -> Result<Option<Self>> {
        let variables = configuration.variables();
        let declared = Declared::new(&variables)?;
        let named = Named::of(configuration);
        let mut found = Vec::new();
        let ask = || -> Result<Vec<HostCard>, Refusal> {
            found = cards::all(config).map_err(|error| {
                Refusal(format!(
                    "ALIYUN_COM_GPU_MEM_CONTAINER asks for a limit, but {error:#}; install the driver, or set sim in {}",
                    config::PATH
                ))
            })?;
            Ok(found.clone())
        };
        let limits = match plan(&declared, named.name.as_deref().unwrap_or(id), ask)? {
            Plan::Native => return Ok(None),
            Plan::Slice(limits) => limits,
        };
        let shim = config.shim()?;
        let root = bundle.root(configuration).context("config.json of the container names no root")?;
        let files = Files::new(root, configuration.binds());
        let image = loadable(&files, &shim)?;
        let folder = Folder::make(&Order {
            root: &config.root,
            id,
            bundle: bundle.folder(),
            image: named.image.as_deref(),
            limits: &limits,
            supply: &supply(&found),
            overcommit: allows_overcommit(&config.root),
        })?;
        match mounts(&folder, config, &files, &image, &shim) {
            Ok((mounts, reads_preload)) => Ok(Some(Self { folder, mounts, reads_preload })),
            Err(error) => {
                let _ = folder.remove();
                Err(error)
            }
        }
    }

    /// The configuration with the mounts, and with hooks of ours.
    fn hooked(&self, configuration: Configuration, config: &Config) -> Result<Configuration> {
        let program = config::own_program()?;
        let words =
            |what: &str| ["hook", what, "--root", &config.root.to_string_lossy()].map(str::to_owned).to_vec();
        Ok(configuration.with(&Additions {
            mounts: self.mounts.clone(),
            created: hook(&program, &words("created")),
            stopped: hook(&program, &words("stopped")),
            preload: (!self.reads_preload).then(|| SHIM.to_owned()),
        }))
    }
}

/// The image, if the shim can be loaded into its programs.
fn loadable(files: &Files, shim: &Path) -> Result<Image> {
    let image = files.look().context("the image's C library cannot be looked at")?;
    let needed = image::needed(shim).with_context(|| format!("cannot read {}", shim.display()))?;
    // The loader would go on without it.
    if needed.is_none() || std::fs::metadata(shim)?.mode() & 0o004 == 0 {
        bail!(Refusal(format!(
            "{} is no library that every user can load: install libcgpu.so again",
            shim.display()
        )));
    }
    let why = match &image {
        Image::Glibc { version, .. } => match needed {
            Some(needed) if needed > *version => {
                format!("the image has glibc {version}, and libcgpu.so needs {needed}")
            }
            _ => return Ok(image),
        },
        Image::Musl => "the image has musl, into whose programs libcgpu.so cannot be loaded".into(),
        Image::Bare => "the image has no glibc, and libcgpu.so cannot be loaded into static programs".into(),
    };
    bail!(Refusal(format!(
        "ALIYUN_COM_GPU_MEM_CONTAINER asks for a limit that could not be kept: {why}; use an image with glibc {} or newer, or leave the variable out",
        needed.unwrap_or(image::Version(2, 17))
    )))
}

/// What is mounted for a slice, and whether that is enough for the image's loader.
fn mounts(
    folder: &Folder,
    config: &Config,
    files: &Files,
    image: &Image,
    shim: &Path,
) -> Result<(Vec<Mount>, bool)> {
    let Image::Glibc { libraries, reads_preload, .. } = image else { bail!("the image has no glibc") };
    let closed = ["ro", "noexec"];
    let open = ["rw", "noexec"];
    let own = |name: &str| folder.path().join(name);
    let inside = |name: &str| format!("{}/{name}", paths::RUN);
    // The folder is read-only, so that nothing in it is replaced: limits least of all.
    let mut mounts = vec![
        bind(folder.path(), paths::RUN, &closed),
        bind(&own("use"), &inside("use"), &open),
        bind(&own("refused"), &inside("refused"), &open),
        bind(shim, SHIM, &["ro"]),
    ];
    if *reads_preload {
        let present = files.read(PRELOAD).context("the image's ld.so.preload cannot be read")?;
        let text = image::merged(SHIM, &present.unwrap_or_default());
        let file = folder.put("ld.so.preload", &text, 0o644)?;
        mounts.push(bind(&file, PRELOAD, &closed));
    }
    if let Some(list) = &config.sim {
        mounts.extend(simulator(folder, config, list, libraries)?);
    }
    Ok((mounts, *reads_preload))
}

/// The simulated driver, where the loader finds it without being told.
fn simulator(folder: &Folder, config: &Config, list: &str, libraries: &Path) -> Result<Vec<Mount>> {
    folder.place(STATES)?;
    std::os::unix::fs::symlink(Path::new(STATES).join(list), folder.path().join(STATE))?;
    let mut mounts = vec![bind(&config.states(), &format!("{}/{STATES}", paths::RUN), &["rw", "noexec"])];
    for name in ["libcuda.so.1", "libnvidia-ml.so.1"] {
        let library = config.simulated(name)?;
        mounts.push(bind(&library, &libraries.join(name).to_string_lossy(), &["ro"]));
    }
    Ok(mounts)
}

fn supply(cards: &[HostCard]) -> Vec<Supply> {
    let supply =
        |(index, card): (usize, &HostCard)| Supply { uuid: card.card.uuid, index, total: card.card.total };
    cards.iter().enumerate().map(supply).collect()
}

/// As the monitor says; without one, as it would be told.
fn allows_overcommit(root: &Path) -> bool {
    match Client::connect(&paths::socket(root)).and_then(|mut monitor| monitor.status()) {
        Ok(status) => status.allow_overcommit,
        Err(_) => MonitorConfig::load(Sources::default()).is_ok_and(|config| config.start.allow_overcommit),
    }
}
