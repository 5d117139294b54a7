//! The location of the built files.

use std::path::{Path, PathBuf};

/// The folder `target/test`, which `cargo xtask test` fills.
#[derive(Clone, Debug)]
pub struct Dist {
    folder: PathBuf,
}

impl Dist {
    /// Finds the folder: CGPU_DIST, else the one beside the test program's own
    /// (`target/debug/deps/..` -> `target/test`).
    #[must_use]
    pub fn find() -> Self {
        let folder = std::env::var_os("CGPU_DIST").map_or_else(beside_the_tests, PathBuf::from);
        assert!(
            folder.join("libcgpu.so").exists(),
            "{} has no built files: run `cargo xtask test --only build` first",
            folder.display()
        );
        Self { folder }
    }

    /// Returns a file by its name in the folder, e.g. `libcgpu.so` or `sim/libcuda.so.1`.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        let file = self.folder.join(name);
        assert!(
            file.exists(),
            "{} was not built: run `cargo xtask test --only build`",
            file.display()
        );
        file
    }

    /// Returns the release builds of the shim and the null driver.
    #[must_use]
    pub fn release(&self) -> Self {
        Self { folder: self.folder.join("release") }
    }

    /// Returns one of the C programs of `tests/cuda/programs`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.file(&format!("programs/{name}"))
    }

    /// Returns the folder itself.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

fn beside_the_tests() -> PathBuf {
    let program = std::env::current_exe().unwrap_or_default();
    program.ancestors().nth(3).map(|target| target.join("test")).unwrap_or_default()
}
