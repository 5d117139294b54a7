//! The lab: a cluster for users, which runs until it is stopped.

use std::fs;
use std::io;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::assets::Assets;
use super::{Cluster, Node, NodeSpec, until};

/// Time after which a lab that was forgotten ends.
const LIFETIME: Duration = Duration::from_secs(7 * 24 * 3600);
/// The API server within the lab.
const API_SERVER: (&str, u16) = ("10.0.0.1", 443);
/// Folders that a node has of its own. None can be over one that is part of itself.
const OVERLAID: [&str; 5] = ["/etc", "/usr", "/var", "/run", "/opt"];

/// A running lab. It ends when it is dropped.
pub struct Lab {
    cluster: Cluster,
    folder: PathBuf,
}

impl Lab {
    /// Starts a cluster with its files in this folder. The programs are those that the environment
    /// names, or that are in `bin` of the folder.
    ///
    /// # Errors
    ///
    /// Everything that is missing, one message each.
    pub fn start(
        folder: &Path,
        node_specs: &[NodeSpec],
        images: &[PathBuf],
    ) -> Result<Self, Vec<String>> {
        let assets = Assets::locate(Some(&folder.join("bin")))?;
        let files = Self::clean(folder);
        fs::create_dir_all(&files)
            .and_then(|()| {
                // The keys in it are those of an administrator who may start anything as root.
                fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
            })
            .map_err(|error| vec![format!("cannot use {}: {error}", folder.display())])?;
        can_be_overlaid(&files).map_err(|reason| vec![reason])?;
        let mut cluster = Cluster::start_in(files, assets, node_specs, LIFETIME, false);
        cluster.share();
        for image in images {
            cluster.nodes.iter().for_each(|node| node.import(image));
        }
        let lab = Self { cluster, folder: folder.to_owned() };
        let port = forward(lab.cluster.machine.network())
            .map_err(|error| vec![format!("cannot listen on 127.0.0.1: {error}")])?;
        let server = format!("https://127.0.0.1:{port}");
        let authority = &lab.cluster.plane.authority;
        let own = authority.kubeconfig("lab", "lab", Some("system:masters"), &server);
        fs::copy(own, lab.kubeconfig()).map_err(|error| vec![error.to_string()])?;
        Ok(lab)
    }

    /// Removes what an earlier lab that was killed has left. Returns the folder of its files.
    pub fn clean(folder: &Path) -> PathBuf {
        Node::clean_all();
        let files = folder.join("cluster");
        for left in [&files, &folder.join("kubeconfig")] {
            let _ = fs::remove_dir_all(left).or_else(|_| fs::remove_file(left));
        }
        files
    }

    /// Waits until the API server accepts the objects of a file. Service accounts and the
    /// description of the API come a moment after the server.
    pub fn wait_until_accepted(&self, file: &Path) {
        until("the example is accepted", || {
            let file = file.to_string_lossy();
            let tried = self.cluster.kubectl(&["apply", "--dry-run=server", "-f", &file]);
            (tried.code() == Some(0)).then_some(())
        });
    }

    /// Returns the kubeconfig of the lab's administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// Returns the folder of kubectl.
    #[must_use]
    pub fn kubectl(&self) -> &Path {
        self.cluster.assets.kubectl.parent().unwrap_or(Path::new("/"))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.kubeconfig());
    }
}

/// Tries whether nodes and containers can have overlays in this folder.
fn can_be_overlaid(folder: &Path) -> Result<(), String> {
    if let Some(over) = OVERLAID.iter().find(|over| folder.starts_with(over)) {
        return Err(format!(
            "{} is below {over}, which each node has of its own: move the sources, for example to \
             your home",
            folder.display()
        ));
    }
    let script = "mkdir -p upper work && mount -t overlay overlay -o \
                  lowerdir=/etc,upperdir=upper,workdir=work /etc";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).current_dir(folder);
    let output = command.output().map_err(|error| format!("cannot run unshare: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!(
        "the file system of {} cannot hold containers ({}): it is an overlay itself, as in a \
         container, or in memory",
        folder.display(),
        String::from_utf8_lossy(&output.stderr).trim()
    ))
}

/// Accepts connections on this host, and continues them to the API server in the lab's network.
/// Returns the port.
fn forward(network: fs::File) -> io::Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || {
        // The socket stays in the host's network; those made from now on are in the lab's.
        let own = LinkNameSpaceType::Network;
        move_into_link_name_space(network.as_fd(), Some(own)).expect("root, and the lab's network");
        for client in listener.incoming().flatten() {
            thread::spawn(move || {
                let Ok(server) = TcpStream::connect(API_SERVER) else { return };
                let ends = (client.try_clone(), server.try_clone());
                let (Ok(to_client), Ok(to_server)) = ends else { return };
                thread::spawn(move || pass(client, to_server));
                pass(server, to_client);
            });
        }
    });
    Ok(port)
}

pub(super) fn pass(mut from: TcpStream, mut to: TcpStream) {
    // An end that is gone ends both.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
