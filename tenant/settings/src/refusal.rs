//! Refusals to start: one message, in `CGPU_DIR/refused` and once on stderr.

use std::fmt;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};

use cgpu_shm::paths::Candidate;

/// A refusal to start: `cuInit` returns `CUDA_ERROR_INVALID_VALUE`. The message says what was
/// expected, what was found and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    message: String,
    /// Directories for the file with the message, best first.
    directories: Vec<Candidate>,
}

impl Refusal {
    /// Returns a refusal with this message; line breaks become blanks.
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into().replace(['\n', '\r'], " "), directories: Vec::new() }
    }

    /// Sets the directories; the first one that can be written gets the message.
    #[must_use]
    pub fn reported_in(mut self, directories: &[Candidate]) -> Self {
        self.directories = directories.to_vec();
        self
    }

    /// Returns the message, which is one line.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Writes the message to the file `refused` in the container's directory, if there is one that
    /// can be written, and as one line to stderr. The shim prints nothing else; the caller calls
    /// this once for each process.
    pub fn announce(&self) {
        // If it cannot be written, stderr still has it.
        let _ = self.directories.iter().any(|directory| self.write_to(directory).is_ok());
        let line = format!("cgpu: {}\n", self.message);
        // SAFETY: the pointer and length are those of `line`, which outlives the call. A single
        // write keeps the line whole between the writes of other threads. A closed stderr does not
        // matter.
        unsafe { libc::write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }

    /// Writes the message into `directory`, which is created if it does not exist.
    fn write_to(&self, candidate: &Candidate) -> io::Result<()> {
        let mode = if candidate.owner.is_some() { 0o700 } else { 0o755 };
        match DirBuilder::new().mode(mode).create(&candidate.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        // In a directory that all users can write, another user may have created ours as a trap.
        let about = std::fs::symlink_metadata(&candidate.directory)?;
        if candidate.owner.is_some_and(|owner| about.uid() != owner || !about.is_dir()) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o644)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(candidate.directory.join("refused"))?;
        file.write_all(format!("{}\n", self.message).as_bytes())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Refusal {}
