//! The control socket: one request a line, one reply a line.
//!
//! Every user that can open it may read. Root and the monitor's own user may write: the kernel
//! tells the user of a connection. These two also have a socket of their own, `owner.sock`: however
//! many processes of other users wait for a connection, they do not wait behind them.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use cgpu_client::message::{Errno, Refusal, Reply, Request};
use cgpu_shm::units::Nanos;
use cgpu_shm::{paths, peer};

use super::{Answer, Deferred, answer};
use crate::host::Host;

const MAX_CLIENTS: usize = 64;
/// Part of `MAX_CLIENTS` that only root and the monitor's own user can have.
const RESERVED_CLIENTS: usize = 16;
/// Most clients of one other user.
const MAX_CLIENTS_PER_USER: usize = 8;
/// Time without a request after which a client can be replaced by a new one.
const IDLE_TIMEOUT: Nanos = Nanos::from_millis(5000);
/// Most connections that wait to be accepted. Each delays the next one by what a local user's
/// connection costs in its part of the time.
const BACKLOG: i32 = 64;
/// Longest request, in bytes.
const MAX_REQUEST: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct Socket {
    all: Entrance,
    owner: Entrance,
    /// Whether a successor has taken over the sockets' names, and removes them.
    is_left: bool,
    clients: BTreeMap<u64, Client>,
    next: u64,
}

/// Which socket a client connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Door {
    /// That of all users.
    All,
    /// That of root and the monitor's own user.
    Owner,
}

/// A socket at which clients are accepted.
#[derive(Debug)]
struct Entrance {
    path: PathBuf,
    /// Device and inode of the socket that was created there.
    identity: Option<(u64, u64)>,
    listener: UnixListener,
}

#[derive(Debug)]
struct Client {
    stream: UnixStream,
    user: u32,
    may_write: bool,
    /// Time of its last request, or of its connection.
    active: Nanos,
    /// Bytes received and not yet answered.
    line: Vec<u8>,
    /// Length of the first request in `line`. None: it is not complete.
    request: Option<usize>,
    /// The reply that waits for the prober.
    deferred: Option<Deferred>,
    /// Reply bytes not yet written.
    reply: Vec<u8>,
}

/// What a connection was.
pub(crate) struct Accepted<'a> {
    /// Whether its user may write; if not, its requests take a bounded part of the time.
    pub(crate) may_write: bool,
    /// The client's number and stream. None: it has closed, or was refused.
    pub(crate) client: Option<(u64, &'a UnixStream)>,
}

impl Socket {
    /// Opens the socket, unless a monitor answers there already.
    ///
    /// # Errors
    /// [`ErrorKind::AddrInUse`] if one does, and I/O errors.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        if UnixStream::connect(path).is_ok() {
            return Err(ErrorKind::AddrInUse.into());
        }
        Self::new(path, Entrance::open)
    }

    /// Replaces the sockets of a monitor that has transferred its state: new clients connect to
    /// these.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn take_over(path: &Path) -> io::Result<Self> {
        Self::new(path, Entrance::take_over)
    }

    fn new(path: &Path, open: impl Fn(&Path, u32) -> io::Result<Entrance>) -> io::Result<Self> {
        // A client that finds this one finds the other one, too.
        let owner = open(&paths::owner_socket(path), 0o600)?;
        let all = open(path, 0o666)?;
        Ok(Self { all, owner, is_left: false, clients: BTreeMap::new(), next: 0 })
    }

    /// Returns when the successor has replaced the socket. Clients that connect until then send
    /// their requests again when the connection ends.
    pub(crate) fn end_when_replaced(self, timeout: Duration) {
        let until = Instant::now() + timeout;
        while self.all.is_in_place() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes the last replies and leaves the name to a successor. False: a client that may write
    /// has not read its reply. Other users' clients are not waited for.
    pub(crate) fn leave(&mut self, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        loop {
            self.flush();
            if self.clients.values().all(|client| !client.may_write || client.reply.is_empty()) {
                self.is_left = true;
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) const fn listener(&self, door: Door) -> &UnixListener {
        match door {
            Door::All => &self.all.listener,
            Door::Owner => &self.owner.listener,
        }
    }

    /// Accepts a client.
    ///
    /// # Errors
    /// If none can be accepted now: no descriptors or no memory are left.
    pub(crate) fn accept(&mut self, now: Nanos, door: Door) -> io::Result<Accepted<'_>> {
        let mut stream = match self.listener(door).accept() {
            Ok((stream, _)) => stream,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                ) =>
            {
                return Ok(Accepted { may_write: false, client: None });
            }
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        let own = rustix::process::geteuid().as_raw();
        // All clients whose user is unknown count as one user.
        let user = peer::user(&stream).unwrap_or(u32::MAX);
        let may_write = [0, own].contains(&user);
        if !self.make_room(user, may_write, now) {
            let message =
                format!("User {user} has too many connections to the monitor: close one.");
            let refusal = Reply::Refused(Refusal::new(Errno::EBUSY, message));
            if let Ok(mut line) = serde_json::to_vec(&refusal) {
                line.push(b'\n');
                // It is closed in any case.
                let _ = stream.write(&line);
            }
            return Ok(Accepted { may_write, client: None });
        }
        self.next += 1;
        let client = self.clients.entry(self.next).or_insert(Client {
            stream,
            user,
            may_write,
            active: now,
            line: Vec::new(),
            request: None,
            deferred: None,
            reply: Vec::new(),
        });
        Ok(Accepted { may_write, client: Some((self.next, &client.stream)) })
    }

    /// Whether another client of this user can be accepted. At a limit, replaces the client that
    /// was idle longest among those that it counts.
    fn make_room(&mut self, user: u32, may_write: bool, now: Nanos) -> bool {
        let count = |of: &dyn Fn(&Client) -> bool| {
            self.clients.values().filter(|client| of(client)).count()
        };
        let is_same_user = |client: &Client| client.user == user;
        let is_other = |client: &Client| !client.may_write;
        let is_any = |_: &Client| true;
        let part: &dyn Fn(&Client) -> bool = if may_write {
            if self.clients.len() < MAX_CLIENTS {
                return true;
            }
            &is_any
        } else if count(&is_same_user) >= MAX_CLIENTS_PER_USER {
            &is_same_user
        } else if count(&is_other) >= MAX_CLIENTS - RESERVED_CLIENTS {
            &is_other
        } else {
            return true;
        };
        let idle = |client: &Client| client.active + IDLE_TIMEOUT <= now;
        let longest = (self.clients.iter())
            .filter(|(_, client)| part(client) && idle(client))
            .min_by_key(|(_, client)| client.active)
            .map(|(number, _)| *number);
        longest.is_some_and(|number| self.clients.remove(&number).is_some())
    }

    /// Reads what a client has sent and answers one request, so that turns are given between any
    /// two.
    pub(crate) fn serve(&mut self, number: u64, host: &mut Host, now: Nanos) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        client.active = now;
        if !(client.read() && client.answer(host, now)) {
            self.clients.remove(&number);
        }
    }

    pub(crate) fn dismiss(&mut self, number: u64) {
        self.clients.remove(&number);
    }

    /// Whether a client that may write, or one that may not, has sent a request that was not
    /// answered.
    pub(crate) fn is_behind(&self, may_write: bool) -> bool {
        self.clients.values().any(|client| client.may_write == may_write && client.is_behind())
    }

    /// Answers one more request: of each client that may write, or of the one that may not and was
    /// answered longest ago.
    pub(crate) fn catch_up(&mut self, host: &mut Host, now: Nanos, may_write: bool) {
        let behind = self
            .clients
            .iter()
            .filter(|(_, client)| client.may_write == may_write && client.is_behind());
        let numbers: Vec<u64> = if may_write {
            behind.map(|(number, _)| *number).collect()
        } else {
            let longest = behind.min_by_key(|(_, client)| client.active);
            longest.map(|(number, _)| *number).into_iter().collect()
        };
        for number in numbers {
            let Some(client) = self.clients.get_mut(&number) else { continue };
            client.active = now;
            if !client.answer(host, now) {
                self.clients.remove(&number);
            }
        }
    }
}

impl Socket {
    /// Sends the replies that waited for the prober and are due; `is_last`: all of them.
    pub(crate) fn send_deferred(&mut self, host: &Host, now: Nanos, is_last: bool) {
        self.clients.retain(|_, client| {
            let due = client.deferred.take_if(|deferred| is_last || deferred.is_due(host, now));
            due.is_none_or(|deferred| client.send(&deferred.reply(host)))
        });
    }

    /// Writes the rest of replies that clients did not take at once.
    pub(crate) fn flush(&mut self) {
        self.clients.retain(|_, client| client.write());
    }
}

impl Entrance {
    fn open(path: &Path, mode: u32) -> io::Result<Self> {
        remove(path)?;
        Ok(Self {
            listener: listen(path, mode)?,
            identity: identity(path).ok(),
            path: path.to_owned(),
        })
    }

    fn take_over(path: &Path, mode: u32) -> io::Result<Self> {
        let draft = Self::open(&path.with_extension("sock.new"), mode)?;
        fs::rename(&draft.path, path)?;
        Ok(Self { path: path.to_owned(), ..draft })
    }

    /// Whether no successor has replaced it.
    fn is_in_place(&self) -> bool {
        identity(&self.path).ok() == self.identity
    }
}

fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    listener.set_nonblocking(true)?;
    rustix::net::listen(&listener, BACKLOG)?;
    fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let about = fs::symlink_metadata(path)?;
    Ok((about.dev(), about.ino()))
}

impl Drop for Socket {
    fn drop(&mut self) {
        // If one cannot be removed, the next monitor finds that no monitor answers there.
        if !self.is_left {
            let _ = remove(&self.all.path);
            let _ = remove(&self.owner.path);
        }
    }
}

impl Client {
    fn read(&mut self) -> bool {
        let mut bytes = [0; 4096];
        match self.stream.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                self.line.extend_from_slice(&bytes[..count]);
                self.find_request();
                self.line.len() <= MAX_REQUEST
            }
            Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        }
    }

    fn find_request(&mut self) {
        if self.request.is_none() {
            self.request = self.line.iter().position(|byte| *byte == b'\n').map(|end| end + 1);
        }
    }

    /// Whether the client has read the replies to all requests that were taken.
    fn is_answered(&self) -> bool {
        self.reply.is_empty() && self.deferred.is_none()
    }

    /// Whether a complete request is unanswered, and the client has read its last reply.
    fn is_behind(&self) -> bool {
        self.is_answered() && self.request.is_some()
    }

    /// Answers one request, if there is a complete one and the client has read its last reply.
    /// False: the connection is broken.
    fn answer(&mut self, host: &mut Host, now: Nanos) -> bool {
        if self.is_answered()
            && let Some(length) = self.request.take()
        {
            let rest = self.line.split_off(length);
            let line = std::mem::replace(&mut self.line, rest);
            self.find_request();
            let reply = match serde_json::from_slice::<Request>(&line) {
                Ok(request) => match answer(host, now, request, self.may_write) {
                    Answer::Reply(reply) => reply,
                    Answer::Later(deferred) => {
                        self.deferred = Some(deferred);
                        return true;
                    }
                },
                Err(error) => Reply::Refused(Refusal::new(
                    Errno::EINVAL,
                    format!("Cannot parse the request: {error}."),
                )),
            };
            return self.send(&reply);
        }
        true
    }

    /// False: the connection is broken.
    fn send(&mut self, reply: &Reply) -> bool {
        let Ok(text) = serde_json::to_vec(reply) else { return false };
        self.reply.extend_from_slice(&text);
        self.reply.push(b'\n');
        self.write()
    }

    /// Writes as much of the reply as the client takes, without waiting. The rest is tried again.
    fn write(&mut self) -> bool {
        while !self.reply.is_empty() {
            match self.stream.write(&self.reply) {
                Ok(count) => drop(self.reply.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
        true
    }
}
