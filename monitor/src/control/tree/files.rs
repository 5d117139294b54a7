//! Handles the calls of the kernel.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::time::{Duration, SystemTime};

use cgpu_client::message::{self, Kind, Refusal, Reply, Request};
use cgpu_shm::clock::{Clock, Monotonic, thread_cpu};
use cgpu_shm::units::Nanos;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, IoctlFlags, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request as Call, TimeOrNow, WriteFlags,
};
use parking_lot::Mutex;

use super::channel::RequestSender;
use super::inodes::{Inodes, ROOT, join};
use crate::throttle::Throttle;

/// Time for which the kernel may cache.
const TTL: Duration = Duration::ZERO;
/// Size of a file. The length is known only when it is read, as in `/proc`.
const SIZE: u64 = 0;
/// Most files that users other than root and the monitor's own have open: each, and all together.
const MAX_OPEN: (usize, usize) = (256, 2048);

#[derive(Debug)]
pub(super) struct Files {
    sender: RequestSender,
    state: Mutex<State>,
    owner: (u32, u32),
    since: SystemTime,
}

#[derive(Debug, Default)]
struct State {
    nodes: Inodes,
    open: HashMap<u64, Open>,
    next: u64,
    /// What users that may not write take of the thread.
    throttle: Throttle,
    /// CPU time of the thread after the last call.
    charged: Nanos,
}

#[derive(Debug)]
struct Open {
    path: String,
    /// Its user, if that may not write.
    user: Option<u32>,
    /// The value that was read at offset 0: further reads return the rest of it, not of a newer
    /// one.
    text: Option<Vec<u8>>,
    /// The same for a folder.
    names: Option<Vec<(u64, FileType, String)>>,
}

impl Files {
    pub(super) fn new(sender: RequestSender) -> Self {
        Self {
            sender,
            state: Mutex::default(),
            owner: (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw()),
            since: SystemTime::now(),
        }
    }

    fn may_write(&self, call: &Call) -> bool {
        call.uid() == 0 || call.uid() == self.owner.0
    }

    fn path(&self, node: INodeNo) -> Result<String, Errno> {
        self.state.lock().nodes.path(node.0).ok_or(Errno::ENOENT)
    }

    fn request(&self, call: &Call, request: Request) -> Result<Reply, Errno> {
        self.sender.send(request, self.may_write(call)).map_err(errno)
    }

    fn kind(&self, call: &Call, path: &str) -> Result<Kind, Errno> {
        match self.request(call, Request::Kind { path: path.to_owned() })? {
            Reply::Kind(kind) => Ok(kind),
            _ => Err(Errno::EIO),
        }
    }

    fn attributes(&self, number: u64, kind: Kind) -> FileAttr {
        FileAttr {
            ino: INodeNo(number),
            size: SIZE,
            blocks: 0,
            atime: self.since,
            mtime: self.since,
            ctime: self.since,
            crtime: self.since,
            kind: file_type(kind),
            perm: match kind {
                Kind::Folder => 0o555,
                Kind::Read => 0o444,
                Kind::Write => 0o644,
            },
            nlink: if kind == Kind::Folder { 2 } else { 1 },
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    fn open_one(&self, call: &Call, path: String) -> Result<FileHandle, Errno> {
        let mut state = self.state.lock();
        let user = (!self.may_write(call)).then(|| call.uid());
        if user.is_some() {
            let users = || state.open.values().filter_map(|open| open.user);
            let own = users().filter(|other| Some(*other) == user).count();
            if own >= MAX_OPEN.0 || users().count() >= MAX_OPEN.1 {
                return Err(Errno::ENFILE);
            }
        }
        state.next += 1;
        let number = state.next;
        state.open.insert(number, Open { path, user, text: None, names: None });
        Ok(FileHandle(number))
    }

    /// Charges a call to its user, and waits if such users have had their part of the thread.
    fn charge(&self, call: &Call) {
        let mut state = self.state.lock();
        let used = thread_cpu();
        let cost = used - std::mem::replace(&mut state.charged, used);
        if self.may_write(call) {
            return;
        }
        let now = Monotonic.now();
        state.throttle.charge(now, cost);
        let wait = state.throttle.due() - now;
        drop(state);
        if wait > Nanos::ZERO {
            Monotonic.sleep(wait);
        }
    }

    fn find(&self, call: &Call, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let name = name.to_str().ok_or(Errno::ENOENT)?;
        let path = join(&self.path(parent)?, name);
        let kind = self.kind(call, &path)?;
        let number = self.state.lock().nodes.remember(&path);
        Ok(self.attributes(number, kind))
    }

    fn stat(&self, call: &Call, node: INodeNo) -> Result<FileAttr, Errno> {
        let path = self.path(node)?;
        Ok(self.attributes(node.0, self.kind(call, &path)?))
    }

    fn check(&self, call: &Call, path: &str, writes: bool) -> Result<(), Errno> {
        match self.kind(call, path)? {
            Kind::Folder => Err(Errno::EISDIR),
            Kind::Write if !writes || self.may_write(call) => Ok(()),
            Kind::Read if !writes => Ok(()),
            Kind::Write | Kind::Read => Err(Errno::EACCES),
        }
    }

    fn read_text(
        &self,
        call: &Call,
        handle: FileHandle,
        offset: u64,
        size: u32,
    ) -> Result<Vec<u8>, Errno> {
        let (path, text) = {
            let state = self.state.lock();
            let open = state.open.get(&handle.0).ok_or(Errno::EBADF)?;
            (open.path.clone(), open.text.clone().filter(|_| offset > 0))
        };
        let text = match text {
            Some(text) => text,
            None => match self.request(call, Request::Get { path })? {
                Reply::Value(mut value) => {
                    if !value.ends_with('\n') {
                        value.push('\n');
                    }
                    value.into_bytes()
                }
                _ => return Err(Errno::EIO),
            },
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let to = from.saturating_add(usize::try_from(size).unwrap_or(usize::MAX)).min(text.len());
        let part = text[from..to].to_vec();
        if let Some(open) = self.state.lock().open.get_mut(&handle.0) {
            open.text = Some(text);
        }
        Ok(part)
    }

    fn write_text(&self, call: &Call, handle: FileHandle, data: &[u8]) -> Result<u32, Errno> {
        let path = self.state.lock().open.get(&handle.0).ok_or(Errno::EBADF)?.path.clone();
        let value = str::from_utf8(data).map_err(|_| Errno::EINVAL)?.to_owned();
        // The right to write was checked when the file was opened.
        match self.sender.send(Request::Set { path, value }, true).map_err(errno)? {
            Reply::Done => {
                tracing::debug!("process {} of user {} wrote a node", call.pid(), call.uid());
                u32::try_from(data.len()).map_err(|_| Errno::EINVAL)
            }
            _ => Err(Errno::EIO),
        }
    }

    fn list(&self, call: &Call, path: &str) -> Result<Vec<(u64, FileType, String)>, Errno> {
        let Reply::Names(names) = self.request(call, Request::List { path: path.to_owned() })?
        else {
            return Err(Errno::EIO);
        };
        let state = self.state.lock();
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let mut entries = vec![
            (state.nodes.number(path), FileType::Directory, ".".to_owned()),
            (state.nodes.number(parent), FileType::Directory, "..".to_owned()),
        ];
        for name in names {
            let (kind, name) = match name.strip_suffix('/') {
                Some(folder) => (FileType::Directory, folder.to_owned()),
                None => (FileType::RegularFile, name),
            };
            entries.push((state.nodes.number(&join(path, &name)), kind, name));
        }
        Ok(entries)
    }

    fn names(
        &self,
        call: &Call,
        handle: FileHandle,
        offset: u64,
    ) -> Result<Vec<(u64, FileType, String)>, Errno> {
        let (path, names) = {
            let state = self.state.lock();
            let open = state.open.get(&handle.0).ok_or(Errno::EBADF)?;
            (open.path.clone(), open.names.clone().filter(|_| offset > 0))
        };
        let names = match names {
            Some(names) => names,
            None => self.list(call, &path)?,
        };
        if let Some(open) = self.state.lock().open.get_mut(&handle.0) {
            open.names = Some(names.clone());
        }
        Ok(names)
    }
}

const fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Folder => FileType::Directory,
        Kind::Read | Kind::Write => FileType::RegularFile,
    }
}

fn errno(refusal: Refusal) -> Errno {
    if refusal.errno == message::Errno::EIO {
        tracing::warn!("a request from the control tree failed: {refusal}");
    } else {
        tracing::debug!("request from the control tree refused: {refusal}");
    }
    match refusal.errno {
        message::Errno::EINVAL => Errno::EINVAL,
        message::Errno::EBUSY => Errno::EBUSY,
        message::Errno::EACCES => Errno::EACCES,
        message::Errno::ENOENT => Errno::ENOENT,
        message::Errno::EIO => Errno::EIO,
    }
}

impl Filesystem for Files {
    fn lookup(&self, call: &Call, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.find(call, parent, name) {
            Ok(found) => reply.entry(&TTL, &found, Generation(0)),
            Err(error) => reply.error(error),
        }
        self.charge(call);
    }

    fn forget(&self, _: &Call, node: INodeNo, lookups: u64) {
        if node.0 != ROOT {
            self.state.lock().nodes.forget(node.0, lookups);
        }
    }

    fn getattr(&self, call: &Call, node: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.stat(call, node) {
            Ok(found) => reply.attr(&TTL, &found),
            Err(error) => reply.error(error),
        }
        self.charge(call);
    }

    /// A shell's `>` truncates a file before it writes. That is allowed if the caller may write,
    /// and has no effect.
    fn setattr(
        &self,
        call: &Call,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let allowed = if mode.is_some() || uid.is_some() || gid.is_some() {
            Err(Errno::EPERM)
        } else if size.is_some() {
            self.path(node).and_then(|path| self.check(call, &path, true))
        } else {
            Ok(())
        };
        match allowed.and_then(|()| self.stat(call, node)) {
            Ok(found) => reply.attr(&TTL, &found),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, call: &Call, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        let path = self.path(node).and_then(|path| self.check(call, &path, writes).map(|()| path));
        match path.and_then(|path| self.open_one(call, path)) {
            Ok(handle) => reply.opened(handle, FopenFlags::FOPEN_DIRECT_IO),
            Err(error) => reply.error(error),
        }
        self.charge(call);
    }

    fn read(
        &self,
        call: &Call,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read_text(call, handle, offset, size) {
            Ok(part) => reply.data(&part),
            Err(error) => reply.error(error),
        }
        self.charge(call);
    }

    /// Each write is a complete value, whatever its offset, as in `/proc`.
    fn write(
        &self,
        call: &Call,
        _: INodeNo,
        handle: FileHandle,
        _: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.write_text(call, handle, data) {
            Ok(size) => reply.written(size),
            Err(error) => reply.error(error),
        }
    }

    fn release(
        &self,
        _: &Call,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state.lock().open.remove(&handle.0);
        reply.ok();
    }

    fn opendir(&self, call: &Call, node: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.path(node).and_then(|path| self.open_one(call, path)) {
            Ok(handle) => reply.opened(handle, FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
        self.charge(call);
    }

    fn readdir(
        &self,
        call: &Call,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        match self.names(call, handle, offset) {
            Ok(names) => {
                let first = usize::try_from(offset).unwrap_or(usize::MAX);
                for (at, (number, kind, name)) in (1u64..).zip(names).skip(first) {
                    if reply.add(INodeNo(number), at, kind, name) {
                        break;
                    }
                }
                reply.ok();
            }
            Err(error) => reply.error(error),
        }
        self.charge(call);
    }

    fn releasedir(
        &self,
        _: &Call,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.state.lock().open.remove(&handle.0);
        reply.ok();
    }

    // The kernel asks for these two every time, whatever the answer is.

    fn statfs(&self, call: &Call, _: INodeNo, reply: ReplyStatfs) {
        reply.statfs(0, 0, 0, 0, 0, 512, 255, 0);
        self.charge(call);
    }

    fn ioctl(
        &self,
        call: &Call,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
        self.charge(call);
    }

    // Nodes are created and removed only with GPUs and containers.

    fn create(&self, _: &Call, _: INodeNo, _: &OsStr, _: u32, _: u32, _: i32, reply: ReplyCreate) {
        reply.error(Errno::ENOENT);
    }

    fn mknod(&self, _: &Call, _: INodeNo, _: &OsStr, _: u32, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn mkdir(&self, _: &Call, _: INodeNo, _: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn unlink(&self, _: &Call, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rmdir(&self, _: &Call, _: INodeNo, _: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Call,
        _: INodeNo,
        _: &OsStr,
        _: INodeNo,
        _: &OsStr,
        _: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EPERM);
    }
}
