//! The control interface: socket and control tree.
//!
//! | module | what it does |
//! |---|---|
//! | `socket` | accepts connections, reads requests, writes replies |
//! | `tree` | the same as a file system (FUSE), on a thread of its own |
//! | `access` | reads, writes and lists the nodes of the tree |
//! | `status` | builds the status report |
//!
//! Imports the host; the host imports nothing from here.

use std::time::Duration;

use cgpu_client::message::{Errno, Refusal, Reply, Request};
use cgpu_shm::units::Nanos;

use crate::host::Host;

mod access;
pub(crate) mod socket;
mod status;
pub(crate) mod tree;

/// Timeout for the files of a container that is registered. The reply warns by what they say.
const REGION_TIMEOUT: Duration = Duration::from_millis(5);

/// Answers one request from the socket or the tree.
pub(crate) fn answer(host: &mut Host, now: Nanos, request: Request, may_write: bool) -> Reply {
    if !may_write && !request.reads() {
        return Reply::Refused(Refusal::denied());
    }
    let reply = match request {
        Request::Register(registration) => host.register(registration).map(|tenant| {
            host.refresh_containers(now);
            host.wait_for_files(now, REGION_TIMEOUT, |container| container.tenant == tenant);
            Reply::Registered(host.registered(tenant))
        }),
        // No limit of the driver is set yet.
        Request::Release { .. } => Ok(Reply::Done),
        Request::Get { path } => access::get(host, &path).map(Reply::Value),
        Request::Set { path, value } => access::set(host, now, &path, &value).map(|()| Reply::Done),
        Request::Kind { path } => access::kind(host, &path).map(Reply::Kind),
        Request::Upgrade => host.successor.begin().map(|()| Reply::Done),
        Request::Transfer => {
            host.is_transferred = true;
            let state = serde_json::to_value(host.transfer(now));
            state
                .map(Reply::UpgradeState)
                .map_err(|error| Refusal::new(Errno::EIO, error.to_string()))
        }
        Request::List { path } => access::list(host, &path).map(Reply::Names),
        Request::Turns => Ok(Reply::Turns(status::turns(host, now))),
        Request::Inventory => status::inventory(host, now).map(Reply::Inventory),
        Request::Health => status::health(host, now).map(Reply::Health),
        Request::Status => Ok(Reply::Status(Box::new(status::of(host, now)))),
    };
    reply.unwrap_or_else(Reply::Refused)
}
