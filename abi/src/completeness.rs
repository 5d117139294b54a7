//! The build fails unless each table has exactly one row for every symbol of `data/*-symbols.tsv`, and none besides.
//!
//! All of it runs in the compiler. A panic there can print one text and no more, so that text is the symbol; the
//! function in which it panics says what is wrong with it. (A second row of one symbol fails earlier, in
//! [`crate::driver::index`].)

use crate::{DRIVER, NVML};

const DRIVER_SYMBOLS: Symbols<{ lines(DRIVER_DATA) }> = Symbols::read(DRIVER_DATA);
const NVML_SYMBOLS: Symbols<{ lines(NVML_DATA) }> = Symbols::read(NVML_DATA);
const DRIVER_DATA: &str = include_str!("../data/driver-symbols.tsv");
const NVML_DATA: &str = include_str!("../data/nvml-symbols.tsv");

const _: () = {
    let mut symbols = DRIVER_SYMBOLS;
    let mut row = 0;
    while row < DRIVER.len() {
        symbols.strike_out(DRIVER[row].symbol);
        row += 1;
    }
    symbols.none_is_left();
};

const _: () = {
    let mut symbols = NVML_SYMBOLS;
    let mut row = 0;
    while row < NVML.len() {
        symbols.strike_out(NVML[row].symbol);
        row += 1;
    }
    symbols.none_is_left();
};

/// The first column of a data file, in ascending order, and which of them have met their row.
struct Symbols<const N: usize> {
    symbols: [&'static str; N],
    met: [bool; N],
}

impl<const N: usize> Symbols<N> {
    /// Takes the first field of each line after the heading.
    const fn read(data: &'static str) -> Self {
        let mut symbols = [""; N];
        let (_, mut rest) = cut(data, b'\n');
        let mut line = 0;
        while line < N {
            let (first, after) = cut(rest, b'\n');
            (symbols[line], _) = cut(first, b'\t');
            assert!(
                line == 0 || precedes(symbols[line - 1], symbols[line]),
                "the data file is not in order"
            );
            rest = after;
            line += 1;
        }
        Symbols { symbols, met: [false; N] }
    }

    /// Finds the symbol of a row by bisection and marks it as met.
    const fn strike_out(&mut self, symbol: &'static str) {
        let (mut low, mut high) = (0, N);
        while low < high {
            let middle = usize::midpoint(low, high);
            if precedes(self.symbols[middle], symbol) { low = middle + 1 } else { high = middle }
        }
        if low == N || precedes(symbol, self.symbols[low]) {
            the_data_file_lacks(symbol);
        }
        self.met[low] = true;
    }

    const fn none_is_left(&self) {
        let mut symbol = 0;
        while symbol < N {
            if !self.met[symbol] {
                the_table_lacks(self.symbols[symbol]);
            }
            symbol += 1;
        }
    }
}

#[track_caller]
const fn the_data_file_lacks(symbol: &str) -> ! {
    panic!("{}", symbol)
}

#[track_caller]
const fn the_table_lacks(symbol: &str) -> ! {
    panic!("{}", symbol)
}

/// Lines after the heading.
const fn lines(data: &str) -> usize {
    let (_, mut rest) = cut(data, b'\n');
    let mut lines = 0;
    while !rest.is_empty() {
        (_, rest) = cut(rest, b'\n');
        lines += 1;
    }
    lines
}

/// What stands before and after the first `separator`; all of it before, if there is none.
const fn cut(text: &str, separator: u8) -> (&str, &str) {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] == separator {
            let (before, after) = text.split_at(at);
            return (before, after.split_at(1).1);
        }
        at += 1;
    }
    (text, "")
}

/// Byte by byte, `left < right`.
const fn precedes(left: &str, right: &str) -> bool {
    let (left, right) = (left.as_bytes(), right.as_bytes());
    let mut at = 0;
    while at < left.len() && at < right.len() {
        if left[at] != right[at] {
            return left[at] < right[at];
        }
        at += 1;
    }
    left.len() < right.len()
}
