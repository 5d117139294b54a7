//! Tracks: streams that no program sees, on which the branches of graphs run.
//!
//! A track knows no legacy stream, and what it can hold is bounded by its ring alone: a graph's commands are launched
//! at once, and a launch does not wait for its own beginning.

use super::Timeline;
use super::queue::QueueFull;
use super::records::{ContextId, RING, StreamId};
use super::stream::{TRACK, Ticket};
use crate::error::Error;
use crate::words::Words;

impl<W: Words> Timeline<'_, W> {
    /// Makes a track.
    ///
    /// # Errors
    /// [`Error::Full`].
    pub fn create_track(&mut self, context: ContextId) -> Result<StreamId, Error> {
        self.new_stream(context, TRACK, 0)
    }

    /// Gives an empty track the priority of the stream that its next commands are launched in. Of one that is not empty the
    /// commands are in their lists already, and the new ones share their priority.
    pub fn lend_priority(&mut self, track: StreamId, stream: StreamId) {
        if self.held(track) == 0 {
            let level = self.get(stream.level());
            self.set(track.level(), level);
        }
    }

    /// Commands that a stream holds.
    #[must_use]
    pub fn held(&self, stream: StreamId) -> u64 {
        self.get(stream.issued()) - self.get(stream.completed())
    }

    /// The most commands that a stream holds at once.
    pub(super) fn depth(&self, stream: StreamId) -> u64 {
        if self.get(stream.flags()) & TRACK == 0 { self.figures.queue_depth } else { RING - 1 }
    }

    /// Whether the stream has room for `count` commands of which all but the last have no legacy barrier to add.
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

    /// What a stream will have been given after `count` more commands.
    #[must_use]
    pub fn ticket_after(&self, stream: StreamId, count: u64) -> Ticket {
        Ticket { stream, number: self.get(stream.issued()) + count }
    }
}
