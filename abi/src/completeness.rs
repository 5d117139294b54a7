//! Build-time check that each table has exactly one row for every symbol of `data/*-symbols.tsv`,
//! and no others.
//!
//! It runs in the compiler. A panic there can print only one text, so that is the symbol; the name
//! of the panicking function says what is wrong. (A second row of one symbol fails earlier, in
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
        symbols.mark(DRIVER[row].symbol);
        row += 1;
    }
    symbols.assert_complete();
};

const _: () = {
    let mut symbols = NVML_SYMBOLS;
    let mut row = 0;
    while row < NVML.len() {
        symbols.mark(NVML[row].symbol);
        row += 1;
    }
    symbols.assert_complete();
};

/// The first column of a data file, in ascending order, and whether each symbol has a row.
struct Symbols<const N: usize> {
    symbols: [&'static str; N],
    has_row: [bool; N],
}

impl<const N: usize> Symbols<N> {
    /// Reads the first field of each line after the heading.
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
        Symbols { symbols, has_row: [false; N] }
    }

    /// Finds the symbol of a row by bisection and marks it.
    const fn mark(&mut self, symbol: &'static str) {
        let (mut low, mut high) = (0, N);
        while low < high {
            let middle = usize::midpoint(low, high);
            if precedes(self.symbols[middle], symbol) { low = middle + 1 } else { high = middle }
        }
        if low == N || precedes(symbol, self.symbols[low]) {
            the_data_file_lacks(symbol);
        }
        self.has_row[low] = true;
    }

    const fn assert_complete(&self) {
        let mut symbol = 0;
        while symbol < N {
            if !self.has_row[symbol] {
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

/// Counts the lines after the heading.
const fn lines(data: &str) -> usize {
    let (_, mut rest) = cut(data, b'\n');
    let mut lines = 0;
    while !rest.is_empty() {
        (_, rest) = cut(rest, b'\n');
        lines += 1;
    }
    lines
}

/// Splits at the first `separator`; without one, the second part is empty.
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

/// Returns whether `left < right`, byte by byte.
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
