//! The borders of cgpu: each place where it reads what another party wrote. Each has a function
//! that takes any bytes and panics if the code behind the border breaks a promise.
//!
//! The tests of this crate replay `seeds/<border>` in every run. `cargo xtask fuzz` searches for
//! new inputs; one that fails is kept as a seed.

use std::path::{Path, PathBuf};

mod container;
mod daemon;

/// A border.
#[derive(Clone, Copy, Debug)]
pub struct Border {
    /// The name of its module, and of its folder of seeds.
    pub name: &'static str,
    /// Checks one input.
    pub check: fn(&[u8]),
}

macro_rules! borders {
    ($($name:ident),+ $(,)?) => {
        mod borders {
            $(pub(super) mod $name;)+
        }

        /// All borders.
        pub const BORDERS: &[Border] =
            &[$(Border { name: stringify!($name), check: borders::$name::check }),+];

        #[cfg(test)]
        mod seeds_pass {
            $(#[test]
            fn $name() {
                super::replay(stringify!($name), super::borders::$name::check);
            })+
        }
    };
}

borders!(
    arguments,
    claims,
    configuration,
    control,
    doorbell,
    environment,
    extender,
    limits,
    metrics,
    plugin,
    region,
    settings,
    snapshot,
    upgrade,
);

/// Returns the folder of a border's seeds.
#[must_use]
pub fn seeds(border: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(border)
}

/// Checks all seeds of a border.
#[cfg(test)]
fn replay(border: &str, check: fn(&[u8])) {
    let entries = std::fs::read_dir(seeds(border)).expect("a folder of seeds");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{border} has no seeds");
    files.retain(|file| {
        let input = std::fs::read(file).expect("a seed can be read");
        std::panic::catch_unwind(|| check(&input)).is_err()
    });
    assert!(files.is_empty(), "these fail: {files:?}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn each_folder_of_seeds_is_of_a_border() {
        let folders = std::fs::read_dir(super::seeds("")).expect("the seeds");
        for folder in folders {
            let name = folder.expect("an entry").file_name();
            assert!(super::BORDERS.iter().any(|border| name == border.name), "{name:?}");
        }
    }
}
