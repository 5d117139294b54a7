//! State as numbered 64-bit words, so that one undo log covers all of it.
//!
//! The timeline accesses its state only through [`Words`]. The segment implements it over shared
//! memory with a log ([`crate::segment`]), tests over plain memory ([`Plain`]).

/// A word's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(pub(crate) usize);

/// Converts a word to an index. Words are only mapped where addresses have 64 bits.
#[inline]
pub(crate) const fn index(word: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    #[allow(clippy::cast_possible_truncation)] // asserted
    let index = word as usize;
    index
}

/// Storage of the state.
pub trait Words {
    /// Reads a word.
    fn get(&self, at: At) -> u64;

    /// Changes a word. The old value is restored if the process dies, or if the change was only an
    /// attempt.
    fn set(&mut self, at: At, value: u64);

    /// Allows the changes so far to be committed: they are consistent by themselves. Not called
    /// between changes that belong together.
    fn seam(&mut self);

    /// Starts an attempt, until [`Words::forget`].
    fn attempt(&mut self);

    /// Rolls back everything changed since [`Words::attempt`].
    fn forget(&mut self);
}

/// Declares a table of records: each field is one word, named by a method of the record's id.
macro_rules! records {
    ($(#[$doc:meta])* $vis:vis $id:ident[$count:expr] from $start:expr;
     $($(#[$field_doc:meta])* $field:ident,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $id(pub(crate) u64);

        impl $id {
            #[allow(dead_code)]
            const START: usize = $start;
            #[allow(dead_code)]
            const STRIDE: u64 = [$(stringify!($field)),*].len() as u64;
            /// Number of records.
            #[allow(dead_code)]
            pub(crate) const COUNT: u64 = $count;
            /// The first word after the table.
            pub(crate) const END: usize =
                Self::START + crate::words::index(Self::COUNT * Self::STRIDE);

            records!(@fields 0; $($(#[$field_doc])* $field,)*);
        }
    };
    (@fields $offset:expr; $(#[$doc:meta])* $field:ident, $($rest:tt)*) => {
        $(#[$doc])*
        #[inline]
        #[allow(dead_code)]
        pub(crate) const fn $field(self) -> crate::words::At {
            crate::words::At(Self::START + crate::words::index(self.0 * Self::STRIDE + $offset))
        }
        records!(@fields $offset + 1; $($rest)*);
    };
    (@fields $offset:expr;) => {};
}
pub(crate) use records;

/// Words in plain memory, with an undo log for attempts. Untouched memory is never committed.
#[derive(Debug)]
pub struct Plain {
    words: Vec<u64>,
    attempted: Option<Vec<(At, u64)>>,
}

impl Plain {
    /// Creates that many words, all zero.
    #[must_use]
    pub fn new(words: usize) -> Self {
        Self { words: vec![0; words], attempted: None }
    }
}

impl Words for Plain {
    fn get(&self, at: At) -> u64 {
        self.words[at.0]
    }

    fn set(&mut self, at: At, value: u64) {
        if let Some(log) = &mut self.attempted {
            log.push((at, self.words[at.0]));
        }
        self.words[at.0] = value;
    }

    fn seam(&mut self) {}

    fn attempt(&mut self) {
        assert!(self.attempted.is_none(), "attempts do not nest");
        self.attempted = Some(Vec::new());
    }

    fn forget(&mut self) {
        for (at, old) in self.attempted.take().into_iter().flatten().rev() {
            self.words[at.0] = old;
        }
    }
}
