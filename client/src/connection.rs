//! A connection to a monitor's socket: one request, one reply, in turn.

use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cgpu_shm::{paths, peer};
use rustix::net;

use crate::health::Health;
use crate::inventory::Inventory;
use crate::message::{
    Errno, GpuTurns, Kind, Refusal, Registered, Registration, Reply, Request, Status,
};

/// Timeout of each reply. A monitor replies at once or not at all.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A connection to a monitor.
#[derive(Debug)]
pub struct Client {
    socket: PathBuf,
    stream: BufReader<UnixStream>,
}

/// Why a request failed.
#[derive(Debug)]
pub enum Failure {
    /// No monitor listens at the socket.
    Absent(PathBuf, io::Error),
    /// The connection broke, or the monitor sent something else than a reply.
    Broken(PathBuf, io::Error),
    /// The monitor refused the request.
    Refused(Refusal),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The errno would be EAGAIN.
            Self::Absent(socket, _) | Self::Broken(socket, _) if self.is_timeout() => write!(
                f,
                "the monitor at {} did not answer in time: restart it, containers go on",
                socket.display()
            ),
            Self::Absent(socket, error) => write!(f, "no monitor at {}: {error}", socket.display()),
            Self::Broken(socket, error) => {
                write!(f, "the monitor at {} did not answer as expected: {error}", socket.display())
            }
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

impl Failure {
    /// Whether the monitor did not answer in time.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        use io::ErrorKind::{TimedOut, WouldBlock};
        match self {
            Self::Refused(_) => false,
            Self::Absent(_, error) | Self::Broken(_, error) => {
                matches!(error.kind(), TimedOut | WouldBlock)
            }
        }
    }

    /// Returns the errno of a refusal.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Refused(refusal) => Some(refusal.errno),
            Self::Absent(..) | Self::Broken(..) => None,
        }
    }
}

/// Connects, and sets the timeout before: a monitor that hangs accepts no connection, and `connect`
/// waits once its queue is full.
fn open(socket: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let stream = net::socket_with(
        net::AddressFamily::UNIX,
        net::SocketType::STREAM,
        net::SocketFlags::CLOEXEC,
        None,
    )?;
    net::sockopt::set_socket_timeout(&stream, net::sockopt::Timeout::Send, Some(timeout))?;
    net::connect(&stream, &net::SocketAddrUnix::new(socket)?)?;
    Ok(stream.into())
}

/// Connects to the monitor's socket for this user.
fn open_own(socket: &Path, timeout: Duration) -> io::Result<UnixStream> {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
    match open(&paths::owner_socket(socket), timeout) {
        // It is for other users. Or there is none: that of an earlier release, or of no monitor.
        Err(error) if matches!(error.kind(), PermissionDenied | NotFound | ConnectionRefused) => {
            open(socket, timeout)
        }
        opened => opened,
    }
}

fn is_cut_off(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

impl Client {
    /// Connects to the monitor whose socket is at `socket`.
    ///
    /// # Errors
    /// [`Failure::Absent`] when no monitor listens there.
    pub fn connect(socket: &Path) -> Result<Self, Failure> {
        Self::connect_within(socket, TIMEOUT)
    }

    /// Connects with a timeout for each reply.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_within(socket: &Path, timeout: Duration) -> Result<Self, Failure> {
        let absent = |error| Failure::Absent(socket.to_owned(), error);
        let stream = open_own(socket, timeout).map_err(absent)?;
        stream.set_read_timeout(Some(timeout)).map_err(absent)?;
        Ok(Self { socket: socket.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sends a request and waits for the reply, which may be a refusal.
    ///
    /// # Errors
    /// [`Failure::Broken`] when no reply comes within 5 s.
    pub fn request(&mut self, request: &Request) -> Result<Reply, Failure> {
        let first = self.exchange(request);
        let cut_off = first.as_ref().is_err_and(is_cut_off);
        let reply = if cut_off {
            // The monitor has been upgraded or restarted. Repeating a request has no other effect.
            self.stream = Self::connect(&self.socket)?.stream;
            self.exchange(request)
        } else {
            first
        };
        reply.map_err(|error| Failure::Broken(self.socket.clone(), error))
    }

    /// Forwards a request of a caller that may only read unless `may_write`.
    pub fn forward(&mut self, request: &Request, may_write: bool) -> Result<Reply, Failure> {
        if !may_write && !request.reads() {
            return Ok(Reply::Refused(Refusal::denied()));
        }
        self.request(request)
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Reply> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        // A monitor that refuses the connection says why before it closes it.
        let written = self.stream.get_mut().write_all(&line);
        line.clear();
        let read = self.stream.read_until(b'\n', &mut line);
        if line.last() != Some(&b'\n') {
            written?;
            read?;
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&line)?)
    }

    /// Registers a container; returns its id and warnings for the program that starts it.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn register(&mut self, registration: Registration) -> Result<Registered, Failure> {
        match self.request(&Request::Register(registration))? {
            Reply::Registered(registered) => Ok(registered),
            other => Err(self.unexpected(other)),
        }
    }

    /// Removes the driver's memory limits of a container that ends.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn release(&mut self, dir: &Path, pid: Option<i32>) -> Result<(), Failure> {
        match self.request(&Request::Release { dir: dir.to_owned(), pid })? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Reads a node of the control tree.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn get(&mut self, path: &str) -> Result<String, Failure> {
        match self.request(&Request::Get { path: path.to_owned() })? {
            Reply::Value(value) => Ok(value),
            other => Err(self.unexpected(other)),
        }
    }

    /// Writes a node of the control tree.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn set(&mut self, path: &str, value: &str) -> Result<(), Failure> {
        match self.request(&Request::Set { path: path.to_owned(), value: value.to_owned() })? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns what can be done with a node of the control tree.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn kind(&mut self, path: &str) -> Result<Kind, Failure> {
        match self.request(&Request::Kind { path: path.to_owned() })? {
            Reply::Kind(kind) => Ok(kind),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the names in a folder of the control tree; folders end in `/`.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn list(&mut self, path: &str) -> Result<Vec<String>, Failure> {
        match self.request(&Request::List { path: path.to_owned() })? {
            Reply::Names(names) => Ok(names),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns everything that the monitor knows.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn status(&mut self) -> Result<Status, Failure> {
        match self.request(&Request::Status)? {
            Reply::Status(status) => Ok(*status),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the last turns of each GPU.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal: older monitors do not support it.
    pub fn turns(&mut self) -> Result<Vec<GpuTurns>, Failure> {
        match self.request(&Request::Turns)? {
            Reply::Turns(turns) => Ok(turns),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the host's GPUs.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal: NVML has not reported all GPUs, or the monitor is an
    /// older one.
    pub fn inventory(&mut self) -> Result<Inventory, Failure> {
        match self.request(&Request::Inventory)? {
            Reply::Inventory(inventory) => Ok(inventory),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the health of the host's GPUs.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal: NVML has never reported it, or the monitor is an
    /// older one.
    pub fn health(&mut self) -> Result<Health, Failure> {
        match self.request(&Request::Health)? {
            Reply::Health(health) => Ok(health),
            other => Err(self.unexpected(other)),
        }
    }

    /// Returns the user that the monitor runs as, as the kernel recorded it.
    #[must_use]
    pub fn monitor_user(&self) -> Option<u32> {
        peer::user(self.stream.get_ref()).ok()
    }

    /// Takes over from a monitor, which then exits; returns its upgrade state.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn transfer(&mut self) -> Result<serde_json::Value, Failure> {
        // Not repeated: the second time no monitor would reply, or this process itself.
        match self
            .exchange(&Request::Transfer)
            .map_err(|error| Failure::Broken(self.socket.clone(), error))?
        {
            Reply::UpgradeState(state) => Ok(state),
            other => Err(self.unexpected(other)),
        }
    }

    /// Makes a monitor start its successor.
    ///
    /// # Errors
    /// As [`Client::request`], and a refusal.
    pub fn upgrade(&mut self) -> Result<(), Failure> {
        match self.request(&Request::Upgrade)? {
            Reply::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    fn unexpected(&self, reply: Reply) -> Failure {
        match reply {
            Reply::Refused(refusal) => Failure::Refused(refusal),
            other => {
                let what = io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("unexpected reply {other:?}"),
                );
                Failure::Broken(self.socket.clone(), what)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn listen() -> (tempfile::TempDir, PathBuf, UnixListener) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("monitor.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        (folder, socket, listener)
    }

    #[test]
    fn monitor_that_accepts_nothing_times_out_at_connect() {
        let (_folder, socket, listener) = listen();
        net::listen(&listener, 0).unwrap();
        let mut connected = Vec::new();
        let failure = loop {
            match Client::connect_within(&socket, SHORT) {
                Ok(client) => connected.push(client),
                Err(failure) => break failure,
            }
        };
        assert!(failure.is_timeout(), "{failure}");
    }

    #[test]
    fn monitor_that_answers_nothing_times_out_at_the_reply() {
        let (_folder, socket, _listener) = listen();
        let failure = Client::connect_within(&socket, SHORT).unwrap().get("version").unwrap_err();
        assert!(failure.is_timeout(), "{failure}");
    }

    #[test]
    fn absent_monitor_is_no_timeout() {
        let failure = Client::connect(Path::new("/nowhere/monitor.sock")).unwrap_err();
        assert!(!failure.is_timeout(), "{failure}");
    }

    #[test]
    fn refusal_of_the_connection_is_reported_though_it_is_closed() {
        let (_folder, socket, listener) = listen();
        let mut client = Client::connect(&socket).unwrap();
        let reply = Reply::Refused(Refusal::new(Errno::EBUSY, "Too many connections."));
        let mut line = serde_json::to_vec(&reply).unwrap();
        line.push(b'\n');
        let (mut accepted, _) = listener.accept().unwrap();
        accepted.write_all(&line).unwrap();
        drop(accepted);
        assert_eq!(client.get("version").unwrap_err().errno(), Some(Errno::EBUSY));
    }
}
