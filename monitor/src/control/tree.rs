//! The control tree as a file system, for `cat` and `echo`.
//!
//! ```text
//!   program -- read, write --> kernel --> files ==channel==> daemon: control::access
//!                              (FUSE)   a thread of its own           between two steps
//! ```
//!
//! `control` decides what a node is, reads and accepts, for the socket and the files alike. This
//! module finds paths, converts errors to numbers, and distinguishes users. Its thread sends the
//! request to the daemon and waits at most [`channel::REPLY_TIMEOUT`]: if the daemon does not
//! answer, the caller gets EIO instead of a hang, and the request is not carried out later.
//!
//! Nothing is cached: each access reads the host as it is. A mount left by a killed monitor is
//! removed by the next one, and a predecessor's by its successor, to which calls still in flight in
//! it are forwarded. A mount on top of the old one would be its child and vanish with it. So the
//! new one is mounted beneath the old one, and appears when that is removed. Where this is not
//! possible (before Linux 6.5, or without root), the mount point is an empty folder for a short
//! time in between.

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

/// Temporary mount point below the monitor's root, for a mount that is moved beneath another.
const STAGING_MOUNT: &str = ".tree";

/// A mounted tree. It is unmounted when it is dropped.
#[derive(Debug)]
pub(crate) struct Tree {
    at: PathBuf,
    /// Source of the mount, which distinguishes it from others.
    name: String,
    session: Option<BackgroundSession>,
}

impl Tree {
    /// Mounts the tree of the monitor of `root`, and removes mounts that earlier monitors of that
    /// root have left there.
    ///
    /// # Errors
    /// I/O errors: no FUSE, no permission, or the mount point has the tree of another root.
    pub(crate) fn mount(at: &Path, root: &Path, sender: RequestSender) -> io::Result<Self> {
        let name = format!("cgpu:{}", root.display());
        let at = mounts::resolve(at)?;
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

    pub(crate) fn path(&self) -> &Path {
        &self.at
    }

    /// Leaves the mount to a successor, which removes it. Until the timeout, `serve` is called as
    /// long as a program has one of its files open.
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
    // A user other than root may open it to others only where /etc/fuse.conf allows it.
    config.acl =
        if rustix::process::geteuid().is_root() { SessionACL::All } else { SessionACL::Owner };
    config
}

/// Replaces a mount with this source without a gap: mounts `aside`, moves that beneath the old one,
/// removes the old one. None: there is no such mount, or it is not possible.
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
    // A monitor that was killed meanwhile may have left a mount there.
    clear(aside, name).ok()?;
    fs::create_dir_all(aside).ok()?;
    let mounted = spawn_mount(Files::new(sender.clone()), aside, config);
    let session = mounted.and_then(|session| match mounts::put_beneath(aside, at) {
        Ok(()) => Ok(session),
        Err(error) => {
            // Dropping it would wait for the mount, which is removed below.
            forget(session);
            Err(error)
        }
    });
    let removed = clear(aside, name).and_then(|()| fs::remove_dir(aside));
    if let Err(error) = removed {
        tracing::warn!("cannot remove {}: {error}", aside.display());
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
    tracing::info!("the control tree is absent for a short time: {error}");
    None
}

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
            tracing::warn!("cannot unmount {}: {error}", self.at.display());
        }
        // Dropping it would wait for programs that still have a file open; those get an error when
        // this process exits.
        forget(session);
    }
}
