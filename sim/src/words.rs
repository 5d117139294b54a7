//! State as numbered 64-bit words, so that one undo log can cover all of it.
//!
//! The timeline knows its state only through [`Words`]: a word is read by `get` and changed by `set`, and there is no
//! other way. The segment implements it over shared memory with a log ([`crate::segment`]); tests over plain memory
//! ([`Plain`]).

/// A word's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(pub(crate) usize);

/// A number kept in a word, as an index. Words are only mapped where addresses have 64 bits.
#[inline]
pub(crate) const fn index(word: u64) -> usize {
    const { assert!(size_of::<usize>() == size_of::<u64>()) };
    #[allow(clippy::cast_possible_truncation)] // asserted
    let index = word as usize;
    index
}

/// Where state lies.
pub trait Words {
    /// Reads a word.
    fn get(&self, at: At) -> u64;

    /// Changes a word. The old value comes back if whoever changes dies, or the changes were only tried.
    fn set(&mut self, at: At, value: u64);

    /// Between two changes that belong together no seam is called: what was changed up to here makes sense by itself
    /// and may stay.
    fn seam(&mut self);

    /// What is changed from here on is only tried, until [`Words::forget`].
    fn attempt(&mut self);

    /// Takes back everything changed since [`Words::attempt`].
    fn forget(&mut self);
}

/// Declares a table of records: each field of a record is one word, named by a method of the record's id.
macro_rules! records {
    ($(#[$doc:meta])* $vis:vis $id:ident[$count:expr] from $start:expr;
     $($(#[$field_doc:meta])* $field:ident,)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis struct $id(pub(crate) u64);

        impl $id {
            /// Where the table starts.
            #[allow(dead_code)]
            const START: usize = $start;
            /// Words of one record.
            #[allow(dead_code)]
            const STRIDE: u64 = [$(stringify!($field)),*].len() as u64;
            /// How many there are.
            #[allow(dead_code)]
            pub(crate) const COUNT: u64 = $count;
            /// The first word after the table.
            pub(crate) const END: usize = Self::START + crate::words::index(Self::COUNT * Self::STRIDE);

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

/// Words in plain memory, with an undo log for attempts. Memory that is never touched is never committed.
#[derive(Debug)]
pub struct Plain {
    words: Vec<u64>,
    attempted: Option<Vec<(At, u64)>>,
}

impl Plain {
    /// That many words, all zero.
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
