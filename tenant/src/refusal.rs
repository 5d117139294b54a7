//! Why the shim refuses to start: one sentence, in `CGPU_DIR/refused` and once on stderr.

use std::fmt;
use std::path::{Path, PathBuf};

/// A refusal to start. `cuInit` answers `CUDA_ERROR_INVALID_VALUE`; the sentence says what was expected, what came, and what to
/// do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub(crate) sentence: String,
    pub(crate) directory: Option<PathBuf>,
}

impl Refusal {
    /// A refusal with this sentence. It has no line break.
    #[must_use]
    pub fn new(sentence: String) -> Self {
        Self { sentence, directory: None }
    }

    /// The same, to be left in `directory` as `refused`.
    #[must_use]
    pub fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = Some(directory.to_owned());
        self
    }

    /// The sentence.
    #[must_use]
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Writes the sentence to the `refused` file of the region's directory, where there is one to write to, and as one line to
    /// stderr. The only text that the shim ever prints: the caller calls this once per process.
    pub fn announce(&self) {
        let line = format!("cgpu: {}\n", self.sentence);
        if let Some(directory) = &self.directory {
            // Where it cannot be written, stderr still has it.
            let _ = std::fs::write(directory.join("refused"), format!("{}\n", self.sentence));
        }
        // SAFETY: the pointer and length are those of `line`, which lives through the call. One write, so that the line stays
        // whole between the writes of other threads; a closed stderr is nobody's concern.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}
