//! Tracks: internal streams on which the branches of graphs run.
//!
//! A track does not synchronize with the legacy stream, and only its ring bounds what it holds: a
//! graph's commands are launched at once, and a launch does not wait for its own beginning.

use super::Timeline;
use super::queue::QueueFull;
use super::records::{ContextId, RING, StreamId};
use super::stream::{TRACK, Ticket};
use crate::error::Error;
use crate::words::Words;

impl<W: Words> Timeline<'_, W> {
    /// Creates a track.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn create_track(&mut self, context: ContextId) -> Result<StreamId, Error> {
        self.new_stream(context, TRACK, 0)
    }

    /// Gives an empty track the priority of the launching stream. In other tracks commands are
    /// already in their lists, and the new ones share their priority.
    pub fn inherit_priority(&mut self, track: StreamId, stream: StreamId) {
        if self.held(track) == 0 {
            let level = self.get(stream.level());
            self.set(track.level(), level);
        }
    }

    /// Returns how many commands a stream holds.
    #[must_use]
    pub fn held(&self, stream: StreamId) -> u64 {
        self.get(stream.issued()) - self.get(stream.completed())
    }

    /// Returns how many commands a stream may hold.
    pub(super) fn depth(&self, stream: StreamId) -> u64 {
        if self.get(stream.flags()) & TRACK == 0 { self.figures.queue_depth } else { RING - 1 }
    }

    /// Checks that the stream has room for `count` commands, of which only the last can add a
    /// legacy barrier.
    ///
    /// # Errors
    /// [`QueueFull`].
    pub fn room_for(&self, stream: StreamId, count: u64) -> Result<(), QueueFull> {
        self.room(stream)?;
        if self.held(stream) + count <= self.depth(stream) {
            return Ok(());
        }
        let number = (self.get(stream.completed()) + 1)
            .max(self.get(stream.issued()).saturating_sub(self.depth(stream) - count));
        Err(QueueFull { room: Ticket { stream, number } })
    }

    /// Returns the ticket that the stream's `count`-th next command will have.
    #[must_use]
    pub fn ticket_after(&self, stream: StreamId, count: u64) -> Ticket {
        Ticket { stream, number: self.get(stream.issued()) + count }
    }
}
