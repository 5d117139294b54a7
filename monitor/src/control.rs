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
use cgpu_scheduler::TenantId;
use cgpu_shm::units::Nanos;

use crate::host::Host;
use crate::host::walls::OrderReason;

mod access;
pub(crate) mod socket;
mod status;
pub(crate) mod tree;

/// Timeout for the files of a container that is registered. The reply warns by what they say.
const REGION_TIMEOUT: Duration = Duration::from_millis(5);

/// Timeout for the driver's memory limits of a container that is registered or that ends.
const WALL_TIMEOUT: Nanos = Nanos::from_millis(300);

/// A reply, or what it waits for.
#[derive(Debug)]
pub(crate) enum Answer {
    Reply(Reply),
    Later(Deferred),
}

/// A reply that waits until the driver's memory limits of a container are set or removed.
#[derive(Clone, Debug)]
pub(crate) struct Deferred {
    /// The number of the prober's orders.
    number: u64,
    until: Nanos,
    /// The container that is registered; none: one ends.
    registered: Option<TenantId>,
}

impl Deferred {
    fn new(host: &Host, now: Nanos, number: u64, registered: Option<TenantId>) -> Self {
        Self { number, until: host.walls_due(now, WALL_TIMEOUT), registered }
    }

    /// Whether the reply need not wait any longer.
    pub(crate) fn is_due(&self, host: &Host, now: Nanos) -> bool {
        now >= self.until || host.has_applied(self.number)
    }

    pub(crate) fn reply(&self, host: &Host) -> Reply {
        self.registered.map_or(Reply::Done, |tenant| Reply::Registered(host.registered(tenant)))
    }
}

impl Answer {
    /// Returns the reply that can be given now.
    pub(crate) fn now(self, host: &Host) -> Reply {
        match self {
            Self::Reply(reply) => reply,
            Self::Later(deferred) => deferred.reply(host),
        }
    }
}

/// Answers one request from the socket or the tree.
pub(crate) fn answer(host: &mut Host, now: Nanos, request: Request, may_write: bool) -> Answer {
    if !may_write && !request.reads() {
        return Answer::Reply(Reply::Refused(Refusal::denied()));
    }
    let deferred = match request {
        Request::Register(registration) => host.register(registration).map(|tenant| {
            host.refresh_containers(now);
            host.wait_for_files(now, REGION_TIMEOUT, |container| container.tenant == tenant);
            let number = host.order_walls(now, OrderReason::Request);
            let number = number.filter(|_| host.has_wall_order(tenant)).unwrap_or(0);
            Deferred::new(host, now, number, Some(tenant))
        }),
        Request::Release { dir, pid } => {
            let number = host.release(now, &dir, pid);
            number.map(|number| Deferred::new(host, now, number.unwrap_or(0), None))
        }
        // A raised limit is of no use before the driver's is raised, too.
        Request::Set { path, value } => access::set(host, now, &path, &value).map(|()| {
            let number = host.order_walls(now, OrderReason::Setting);
            Deferred::new(host, now, number.unwrap_or(0), None)
        }),
        other => return Answer::Reply(answer_now(host, now, other)),
    };
    match deferred {
        Ok(deferred) if deferred.is_due(host, now) => Answer::Reply(deferred.reply(host)),
        Ok(deferred) => Answer::Later(deferred),
        Err(refusal) => Answer::Reply(Reply::Refused(refusal)),
    }
}

fn answer_now(host: &mut Host, now: Nanos, request: Request) -> Reply {
    let reply = match request {
        Request::Register(_) | Request::Release { .. } | Request::Set { .. } => Ok(Reply::Done),
        Request::Get { path } => access::get(host, &path).map(Reply::Value),
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
