//! `/etc/cgpu/monitor.toml`: what a host's monitor is told. Every key may be left out.
//!
//! ```toml
//! root = "/run/cgpu"        # containers and the socket
//! state = "/var/lib/cgpu"   # settings that survive
//! nvml = "libnvidia-ml.so.1"
//! base_slice_ms = 6         # 2: less waiting, 10: fewer switches
//! time_scale = 1.0          # of a simulated card: 10 is ten times slower than life
//! ```

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use cgpu_proto::paths;
use cgpu_proto::units::Nanos;
use serde::Deserialize;

use crate::controller::tuning::Tuning;

/// Where the configuration lies unless told.
pub const PATH: &str = "/etc/cgpu/monitor.toml";

/// Where settings survive, for root.
const STATE: &str = "/var/lib/cgpu";

/// The file, as written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Text {
    root: Option<PathBuf>,
    state: Option<PathBuf>,
    nvml: Option<String>,
    base_slice_ms: Option<u64>,
    time_scale: Option<f64>,
}

/// What the monitor goes by.
#[derive(Clone, Debug)]
pub struct Config {
    /// Holds `containers/` and `monitor.sock`.
    pub root: PathBuf,
    /// Holds `settings.json`.
    pub state: PathBuf,
    /// The NVML library to load.
    pub nvml: String,
    /// Times of the turns.
    pub tuning: Tuning,
}

impl Config {
    /// From the file at `path` if there is one; what the caller asks for wins.
    ///
    /// # Errors
    /// When the file is asked for and missing, cannot be understood, or a value is out of range, or no root is known.
    pub fn load(path: Option<&Path>, root: Option<&Path>) -> Result<Self> {
        let text = match path {
            Some(path) => {
                fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?
            }
            None => fs::read_to_string(PATH).unwrap_or_default(),
        };
        let name = path.unwrap_or(Path::new(PATH));
        let text: Text =
            toml::from_str(&text).with_context(|| format!("{} is not understood", name.display()))?;
        let user = rustix::process::geteuid().as_raw();
        let runtime = std::env::var_os("XDG_RUNTIME_DIR");
        let root = paths::monitor_root(root.or(text.root.as_deref()), user, runtime.as_deref())?;
        let root = std::path::absolute(&root)?;
        let default_state = if root == Path::new(paths::RUN) { STATE.into() } else { root.join("state") };
        let base = text.base_slice_ms.unwrap_or(6);
        ensure!((1..=20).contains(&base), "base_slice_ms: expected 1 to 20, found {base}");
        let scale = text.time_scale.unwrap_or(1.0);
        ensure!((0.1..=1000.0).contains(&scale), "time_scale: expected 0.1 to 1000, found {scale}");
        // Checked just above.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let percent = (scale * 100.0) as u32;
        Ok(Self {
            state: text.state.unwrap_or(default_state),
            root,
            nvml: text.nvml.unwrap_or_else(|| "libnvidia-ml.so.1".into()),
            tuning: Tuning::DEFAULT.with_base(Nanos::from_millis(base)).stretched(percent),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("monitor.toml");
        fs::write(&path, text).unwrap();
        Config::load(Some(&path), None)
    }

    #[test]
    fn what_is_said_counts() {
        let config = load("root = '/x'\nbase_slice_ms = 10\ntime_scale = 2").unwrap();
        assert_eq!(config.root, Path::new("/x"));
        assert_eq!(config.state, Path::new("/x/state"));
        assert_eq!(config.tuning.base, Nanos::from_millis(20));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for text in ["rooot = '/x'", "root = '/x'\nbase_slice_ms = 0", "root = '/x'\ntime_scale = 0", "root"]
        {
            assert!(load(text).is_err(), "{text}");
        }
        assert!(Config::load(Some(Path::new("/nowhere/monitor.toml")), None).is_err());
    }
}
