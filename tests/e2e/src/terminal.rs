//! A real terminal: tmux without a window, in its own folder.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Child, Fixture, Outcome, skip};

/// Deadline of the terminal, above the duration of any test that has one.
const LIFETIME: Duration = Duration::from_secs(300);

const TIMEOUT: Duration = Duration::from_secs(60);

/// A shell in a terminal.
pub struct Terminal {
    /// In the foreground, so that it ends with the test.
    server: Child,
    socket: PathBuf,
}

impl Terminal {
    /// Opens a terminal of this size with these variables. Returns None, after recording the skip,
    /// where there is no tmux.
    #[must_use]
    pub fn open(
        fixture: &Fixture,
        test: &str,
        size: (u16, u16),
        variables: &[(&str, &str)],
    ) -> Option<Self> {
        let there =
            Command::new("tmux").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status();
        if !there.is_ok_and(|status| status.success()) {
            skip(test, "tmux", "tmux is not installed");
            return None;
        }
        let socket = fixture.path(&format!("tmux-{}x{}", size.0, size.1));
        let mut command = fixture.native("tmux".as_ref());
        // An interactive shell reads ENV; the other variables would change colours and sizes.
        for name in ["ENV", "NO_COLOR", "TMUX", "LC_CTYPE", "COLUMNS", "LINES"] {
            command.env_remove(name);
        }
        command
            .env("LC_ALL", "C.UTF-8")
            .env("PS1", "$ ")
            .env("SHELL", "/bin/sh")
            .env("CGPU", fixture.dist().file("cgpu"));
        // A panic's message must fit on one screen.
        command.env("RUST_BACKTRACE", "0");
        command.envs(variables.iter().copied());
        command.arg("-S").arg(&socket).args(["-u", "-f", "/dev/null", "-D"]);
        let mut terminal = Self { server: Child::start_for(command, LIFETIME), socket };
        let deadline = Instant::now() + TIMEOUT;
        while !terminal
            .command(&["set-option", "-g", "status", "off"])
            .status()
            .is_ok_and(|status| status.success())
        {
            assert!(terminal.server.runs() && Instant::now() < deadline, "tmux does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        let (columns, rows) = (size.0.to_string(), size.1.to_string());
        let folder = fixture.path("").to_string_lossy().into_owned();
        terminal.tmux(&["set-option", "-g", "remain-on-exit", "on"]);
        terminal.tmux(&[
            "new-session",
            "-d",
            "-s",
            "test",
            "-x",
            &columns,
            "-y",
            &rows,
            "-c",
            &folder,
            "/bin/sh -i",
        ]);
        terminal.shows("$");
        Some(terminal)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.socket).args(["-u", "-f", "/dev/null"]).args(arguments);
        command
            .env("LC_ALL", "C.UTF-8")
            .env_remove("TMUX")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        Outcome::of(self.command(arguments)).silent().stdout
    }

    /// Types a line.
    pub fn line(&self, text: &str) {
        self.types(text);
        self.press("Enter");
    }

    /// Types characters literally.
    pub fn types(&self, text: &str) {
        self.tmux(&["send-keys", "-t", "test", "-l", text]);
    }

    /// Presses a key by tmux's name for it: `Enter`, `C-c`, `Down`.
    pub fn press(&self, key: &str) {
        self.tmux(&["send-keys", "-t", "test", key]);
    }

    /// Changes its size.
    pub fn resize(&self, columns: u16, rows: u16) {
        let (columns, rows) = (columns.to_string(), rows.to_string());
        self.tmux(&["resize-window", "-t", "test", "-x", &columns, "-y", &rows]);
    }

    /// Returns the text on the screen.
    #[must_use]
    pub fn picture(&self) -> String {
        self.tmux(&["capture-pane", "-t", "test", "-p"])
    }

    /// Returns the screen with its colours as escape sequences.
    #[must_use]
    pub fn coloured_screen(&self) -> String {
        self.tmux(&["capture-pane", "-t", "test", "-p", "-e"])
    }

    /// Returns one of tmux's variables, such as `alternate_on`.
    #[must_use]
    pub fn variable(&self, name: &str) -> String {
        self.tmux(&["display-message", "-t", "test", "-p", &format!("#{{{name}}}")])
            .trim_end()
            .to_owned()
    }

    /// Waits until this text is on the screen and returns the screen.
    pub fn shows(&self, what: &str) -> String {
        self.wait_for(what, |picture| picture.contains(what))
    }

    /// Waits for a condition on the screen and returns the screen.
    pub fn wait_for(&self, what: &str, mut holds: impl FnMut(&str) -> bool) -> String {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let picture = self.picture();
            if holds(&picture) {
                return picture;
            }
            assert!(Instant::now() < deadline, "never on the screen: {what}\n{picture}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
