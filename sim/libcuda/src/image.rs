//! Images of code. Any byte string is accepted. PTX is parsed for what programs query: names of
//! kernels, the layout of their parameters, and names and sizes of global variables.

use core::ffi::{c_char, c_void};

use crate::answer::Answer;
use crate::argument::In;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) kernels: Vec<KernelShape>,
    pub(crate) globals: Vec<Global>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct KernelShape {
    pub(crate) name: String,
    /// Offset and size of each parameter, in bytes.
    pub(crate) parameters: Vec<(usize, usize)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Global {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) managed: bool,
}

/// First bytes of binary images: ELF, a fatbin, and the struct that points to a fatbin.
const BINARIES: [&[u8]; 3] = [b"\x7fELF", b"\x50\xed\x55\xba", b"\xb1\x43\x62\x46"];

impl Image {
    /// Reads an image from memory. Binary images declare nothing: their length is unknown, and
    /// their format is not parsed.
    pub(crate) fn read(image: In<c_void>) -> Answer<Self> {
        let image = image.required()?;
        if BINARIES.iter().any(|magic| image.begins_with(magic)) {
            return Ok(Self::default());
        }
        Ok(Self::parse(&image.cast::<c_char>().text()?))
    }

    /// Parses the declarations of PTX; other text has none.
    pub(crate) fn parse(text: &str) -> Self {
        let mut image = Self::default();
        let text = without_comments(text);
        let mut rest = text.as_str();
        // A statement ends with a semicolon; a kernel's head ends where its body begins.
        while let Some(end) = rest.find([';', '{']) {
            let (statement, after) = rest.split_at(end);
            rest = &after[1..];
            if let Some(kernel) = kernel(statement) {
                image.kernels.push(kernel);
            } else if let Some(global) = global(statement) {
                image.globals.push(global);
            }
            if after.starts_with('{') {
                rest = behind_body(rest);
            }
        }
        image
    }
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(|line| line.split_once("//").map_or(line, |(code, _)| code));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the text after the brace that closes the block before `text`.
fn behind_body(text: &str) -> &str {
    let mut depth = 1_usize;
    for (index, character) in text.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return &text[index + 1..];
        }
    }
    ""
}

/// Parses `.visible .entry name ( .param .u64 name_param_0, .param .align 8 .b8 name_param_1[24] )
/// .maxntid 256, 1, 1`.
fn kernel(statement: &str) -> Option<KernelShape> {
    let (_, head) = statement.split_once(".entry")?;
    let (name, parameters) = match head.split_once('(') {
        Some((name, rest)) => {
            (name, rest.split_once(')').map_or(rest, |(parameters, _)| parameters))
        }
        None => (head, ""),
    };
    let name = name.split_whitespace().next()?.to_owned();
    let mut end = 0_usize;
    let parameters = parameters
        .split(',')
        .filter_map(|parameter| variable(parameter.trim_start().strip_prefix(".param")?))
        .map(|(_, bytes, align)| {
            let offset = end.next_multiple_of(align);
            end = offset + bytes;
            (offset, bytes)
        })
        .collect();
    Some(KernelShape { name, parameters })
}

/// Parses `.visible .global .align 4 .b8 name[40]`, with or without ` = {...}`.
fn global(statement: &str) -> Option<Global> {
    let declaration = statement.split_once('=').map_or(statement, |(declaration, _)| declaration);
    let (_, rest) =
        declaration.split_once(".global").or_else(|| declaration.split_once(".const"))?;
    let (name, bytes, _) = variable(rest)?;
    Some(Global { name, bytes: bytes as u64, managed: statement.contains(".managed") })
}

/// Parses a declaration such as `.align 8 .b8 name[24]` into name, size and alignment.
fn variable(declaration: &str) -> Option<(String, usize, usize)> {
    let mut element = None;
    let mut align = None;
    let mut elements = 1_usize;
    let mut words = declaration.split_whitespace();
    let name = loop {
        let word = words.next()?;
        match word.strip_prefix('.') {
            Some("align") => {
                align = words.next()?.parse::<usize>().ok().filter(|align| align.is_power_of_two())
            }
            Some("v2") => elements = 2,
            Some("v4") => elements = 4,
            // `.u64` has 8 bytes; directives without a number, such as `.ptr`, have no size.
            Some(word) => {
                let bits = word.trim_start_matches(|c: char| c.is_ascii_lowercase());
                element = element.or(bits.parse::<usize>().ok().map(|bits| (bits / 8).max(1)));
            }
            None => break word,
        }
    };
    let element = element?;
    let mut parts = name.split(['[', ']']);
    let name = parts.next()?.to_owned();
    for length in parts.filter(|part| !part.is_empty()) {
        elements = elements.checked_mul(length.parse().ok()?)?;
    }
    Some((name, element.checked_mul(elements)?, align.unwrap_or(element)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "
        //
        // Generated by a compiler: .entry in a comment is none
        //
        .version 7.8
        .target sm_86
        .address_size 64
        .extern .func (.param .b32 func_retval0) vprintf (.param .b64 a, .param .b64 b) ;
        .visible .global .align 4 .b8 table[40] = {1, 2, 3};
        .visible .global .align 4 .u32 counter;
        .const .align 8 .f64 weights[3];
        .visible .global .attribute(.managed) .align 8 .u64 shared_word;
        .visible .entry add(
            .param .u64 add_param_0,
            .param .u32 add_param_1,
            .param .u64 .ptr .global .align 16 add_param_2
        )
        .maxntid 256, 1, 1
        {
            .reg .pred %p<2>;
            { .param .b64 inner; call (inner), vprintf, (inner, inner); }
            ret;
        }
        .entry empty() { ret; }
        .visible .entry by_value(
            .param .align 8 .b8 by_value_param_0[24], .param .u8 by_value_param_1
        ) { ret; }
    ";

    #[test]
    fn kernels_and_their_parameters_are_parsed() {
        let image = Image::parse(PTX);
        let names: Vec<_> = image.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
        assert_eq!(names, ["add", "empty", "by_value"]);
        assert_eq!(image.kernels[0].parameters, [(0, 8), (8, 4), (16, 8)]);
        assert_eq!(image.kernels[1].parameters, []);
        assert_eq!(image.kernels[2].parameters, [(0, 24), (24, 1)]);
    }

    #[test]
    fn globals_and_their_sizes_are_parsed() {
        let globals = Image::parse(PTX).globals;
        let sizes: Vec<_> = globals
            .iter()
            .map(|global| (global.name.as_str(), global.bytes, global.managed))
            .collect();
        assert_eq!(
            sizes,
            [
                ("table", 40, false),
                ("counter", 4, false),
                ("weights", 24, false),
                ("shared_word", 8, true)
            ]
        );
    }

    #[test]
    fn text_other_than_ptx_declares_nothing() {
        for text in [
            "",
            "not ptx",
            "{{{",
            "}}",
            ";;;",
            ".entry",
            ".global .u32",
            ".entry f(.param .u99999999999999999999 x",
        ] {
            let image = Image::parse(text);
            assert_eq!(image.globals, [], "{text}");
        }
    }
}
