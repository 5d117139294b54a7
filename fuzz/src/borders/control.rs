//! The control socket with any bytes, from root and from a user without rights. Each line has one
//! reply; a user without rights changes nothing; what root sets is in its range and survives a
//! restart.
//!
//! An input is a byte, even for root, then the lines.

use std::io::{BufRead, BufReader, Write};

use cgpu_client::message::{Reply, Request};
use cgpu_monitor::settings::{Found, Settings};

use crate::daemon::Daemon;

/// Longest input that is answered whole. Beyond, the monitor may close the connection.
const MAX_ANSWERED: usize = 60 << 10;

/// Whether the request ends the monitor or starts a program.
fn ends_the_monitor(line: &[u8]) -> bool {
    matches!(serde_json::from_slice(line), Ok(Request::Upgrade | Request::Transfer))
}

fn check_reply(line: &str, may_write: bool) {
    let reply: Reply = serde_json::from_str(line).expect("a reply is JSON");
    match reply {
        Reply::Refused(refusal) => assert!(!refusal.message.is_empty()),
        Reply::Registered(_) | Reply::Done => assert!(may_write, "{line}"),
        Reply::UpgradeState(_) => panic!("the state is not given out"),
        Reply::Names(names) => assert!(!names.is_empty()),
        Reply::Value(_)
        | Reply::Kind(_)
        | Reply::Status(_)
        | Reply::Turns(_)
        | Reply::Inventory(_)
        | Reply::Health(_) => {}
    }
}

thread_local! {
    static DAEMON: Daemon = Daemon::start();
}

pub(crate) fn check(input: &[u8]) {
    let Some((user, lines)) = input.split_first() else { return };
    let count = lines.split(|byte| *byte == b'\n').count();
    if lines.split(|byte| *byte == b'\n').any(ends_the_monitor) {
        return;
    }
    DAEMON.with(|daemon| {
        let (mut stream, may_write) = daemon.connect(user % 2 == 0);
        let sent = stream.write_all(lines).and_then(|()| stream.write_all(b"\n"));
        assert!(sent.is_ok() || lines.len() > MAX_ANSWERED, "{sent:?}");
        let mut replies = BufReader::new(stream);
        for _ in 0..count {
            let mut line = String::new();
            match replies.read_line(&mut line) {
                Ok(1..) => check_reply(&line, may_write),
                other => return assert!(lines.len() > MAX_ANSWERED, "no reply: {other:?}"),
            }
        }
        daemon.check();
        let saved = Settings::load(&daemon.state()).expect("settings can be read");
        assert!(matches!(saved, Found::Settings(_)), "{saved:?}");
    });
}
