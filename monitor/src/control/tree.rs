//! The control tree as a file system, for `cat` and `echo`.
//!
//! ```text
//!   program -- read, write --> kernel --> files ==channel==> daemon: control::access
//!                              (FUSE)   a thread of its own           between two steps
//! ```
//!
//! What a node is, reads and takes is decided in `control`, for the socket and for the files alike; here paths are found, errors become
//! numbers, and users are told apart. The thread asks the daemon and waits for at most [`channel::REPLY_TIMEOUT`]: a daemon that does not answer
//! costs the caller an EIO, never a hang, and what was not done in time is not done later.
//!
//! Nothing is cached: every look at a node is one at the host as it is. A mount that a killed monitor has left is taken away by the next, and
//! a predecessor's by its successor: calls that are on their way through it are passed on to the successor. A mount above the old one would be its
//! child, and go with it; so the new one is put beneath the old one, and is there when that is taken away. Where that cannot be done (before
//! Linux 6.5, or without root) the place is an empty folder for the moment between the two.

use std::fs;
use std::io;
use std::mem::forget;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use fuser::{BackgroundSession, Config, MountOption, SessionACL, spawn_mount};

pub(crate) mod channel;
mod files;
mod inodes;
mod mounts;

use channel::RequestSender;
use files::Files;

/// Where a mount is made that is put beneath another, below the monitor's root.
const STAGING_MOUNT: &str = ".tree";

/// A mounted tree. It is unmounted when it is dropped.
#[derive(Debug)]
pub(crate) struct Tree {
    at: PathBuf,
    /// The mount's source, by which it is told from others'.
    name: String,
    session: Option<BackgroundSession>,
}

impl Tree {
    /// Mounts the tree of the monitor of `root`. What another monitor of that root, dead or succeeded, has left there is taken away.
    ///
    /// # Errors
    /// As the system says: no FUSE, no right to it, another root's tree at the place.
    pub(crate) fn mount(at: &Path, root: &Path, sender: RequestSender) -> io::Result<Self> {
        let name = format!("cgpu:{}", root.display());
        let at = mounts::place(at)?;
        let config = options(&name);
        let session = match beneath(&at, &name, &root.join(STAGING_MOUNT), &sender, &config) {
            Some(session) => session,
            None => {
                clear(&at, &name)?;
                if let Some(source) = mounts::top(&at)?.filter(|source| source.starts_with("cgpu:"))
                {
                    let what = format!("the tree of another monitor is mounted there ({source})");
                    return Err(io::Error::new(io::ErrorKind::AddrInUse, what));
                }
                fs::create_dir_all(&at)?;
                spawn_mount(Files::new(sender), &at, &config)?
            }
        };
        Ok(Self { at, name, session: Some(session) })
    }

    /// Where it is.
    pub(crate) fn place(&self) -> &Path {
        &self.at
    }

    /// Leaves the mount to a successor, which takes it away. `serve` is called as long as a program
    /// has a file of it open, up to the timeout.
    pub(crate) fn leave(mut self, timeout: Duration, mut serve: impl FnMut()) {
        let Some(session) = self.session.take() else { return };
        let until = Instant::now() + timeout;
        while !session.guard.is_finished() && Instant::now() < until {
            serve();
            sleep(Duration::from_millis(1));
        }
        forget(session);
    }
}

fn options(name: &str) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(name.to_owned()),
        MountOption::Subtype("cgpu".into()),
        MountOption::DefaultPermissions,
        MountOption::NoDev,
        MountOption::NoSuid,
        MountOption::NoExec,
    ];
    // Another user than root may open it to others only where /etc/fuse.conf says so.
    config.acl =
        if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config
}

/// Takes the place of a mount of this name without leaving it empty: mounts `aside`, puts that beneath, takes the old one away. None: there is no
/// such mount, or it cannot be done.
fn beneath(
    at: &Path,
    name: &str,
    aside: &Path,
    sender: &RequestSender,
    config: &Config,
) -> Option<BackgroundSession> {
    if !rustix::process::geteuid().is_root() || mounts::top(at).ok()?.as_deref() != Some(name) {
        return None;
    }
    while mounts::count(at, name).ok()? > 1 && mounts::top(at).ok()?.as_deref() == Some(name) {
        mounts::detach(at).ok()?;
    }
    // One that was killed meanwhile has left something there.
    clear(aside, name).ok()?;
    fs::create_dir_all(aside).ok()?;
    let mounted = spawn_mount(Files::new(sender.clone()), aside, config);
    let session = mounted.and_then(|session| match mounts::put_beneath(aside, at) {
        Ok(()) => Ok(session),
        Err(error) => {
            // Dropping it would wait for the mount, which goes now.
            forget(session);
            Err(error)
        }
    });
    let gone = clear(aside, name).and_then(|()| fs::remove_dir(aside));
    if let Err(error) = gone {
        tracing::warn!("{} is not taken away: {error}", aside.display());
    }
    let error = match session {
        Ok(session) => match mounts::detach(at) {
            Ok(()) => return Some(session),
            Err(error) => {
                forget(session);
                error
            }
        },
        Err(error) => error,
    };
    tracing::info!("the tree's place is empty for a moment: {error}");
    None
}

/// Takes away all of this name that is mounted there.
fn clear(at: &Path, name: &str) -> io::Result<()> {
    while mounts::top(at)?.is_some_and(|source| source == name) {
        mounts::detach(at)?;
    }
    Ok(())
}

impl Drop for Tree {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if let Err(error) = clear(&self.at, &self.name) {
            tracing::warn!("{} is not unmounted: {error}", self.at.display());
        }
        // It would wait for programs that still have a file open; they are told when this process is gone.
        forget(session);
    }
}
