//! What people have set, and that survives a restart: one JSON file, replaced as a whole.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// Everything that survives.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Memory limit in bytes for containers that come without one; 0: none.
    pub default_memsize: u64,
    /// By the card's UUID.
    pub cards: BTreeMap<String, CardSettings>,
    /// By the container's id.
    pub containers: BTreeMap<String, ContainerSettings>,
}

/// What is set for a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CardSettings {
    /// 0..5; none: never set.
    pub policy: Option<u32>,
    /// 1..25.
    pub max_inst: u32,
    /// 20..99.
    pub prio_ratio: u32,
    /// Idle shares are used by others under policy 2.
    pub work_conserving: bool,
}

impl Default for CardSettings {
    fn default() -> Self {
        Self { policy: None, max_inst: 20, prio_ratio: 80, work_conserving: false }
    }
}

/// What is set for a container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ContainerSettings {
    /// 1..25; none: as it was started with.
    pub weight: Option<u32>,
    /// Memory limit in bytes by the card's UUID.
    pub memsize: BTreeMap<String, u64>,
}

const FILE: &str = "settings.json";

impl Settings {
    /// Reads them. A directory without any has none.
    ///
    /// # Errors
    /// When there are some and they cannot be read or understood: they must not be overwritten then.
    pub fn load(directory: &Path) -> io::Result<Self> {
        match fs::read(directory.join(FILE)) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Writes them: either all of it is there afterwards, or what was there before.
    ///
    /// # Errors
    /// As the system says: a full disk, a read-only one.
    pub fn save(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        let draft = directory.join(".settings.json");
        let mut file = fs::File::create(&draft)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(draft, directory.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_saved_is_loaded() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("state");
        assert_eq!(Settings::load(&state).unwrap(), Settings::default());
        let mut settings = Settings { default_memsize: 7, ..Settings::default() };
        settings.cards.insert("GPU-1".into(), CardSettings { policy: Some(2), ..CardSettings::default() });
        let container = ContainerSettings {
            weight: Some(3),
            memsize: [("GPU-1".to_string(), 1 << 30)].into_iter().collect(),
        };
        settings.containers.insert("a".into(), container);
        settings.save(&state).unwrap();
        assert_eq!(Settings::load(&state).unwrap(), settings);
    }

    #[test]
    fn broken_settings_are_not_taken_for_none() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(FILE), "{").unwrap();
        assert!(Settings::load(directory.path()).is_err());
    }

    #[test]
    fn a_place_that_cannot_be_written_is_an_error() {
        assert!(Settings::default().save(Path::new("/proc/cgpu")).is_err());
    }
}
