//! Facts that tidy needs about a Rust file: the file's functions, the paths that its code names,
//! and which lines are test code.

use proc_macro2::{Delimiter, Spacing, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};

/// A Rust file, reduced to what the rules look at.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) functions: Vec<Function>,
    /// Paths of two and more segments, with `use` groups spelled out: `use a::{b, c::d}` gives
    /// `a::b` and `a::c::d`. Code inside macro calls is included.
    pub(super) paths: Vec<NamedPath>,
    /// Every identifier with its line, including identifiers in macro calls.
    pub(super) identifiers: Vec<NamedPath>,
    /// First and last line of each item under `#[cfg(test)]`.
    test_lines: Vec<(usize, usize)>,
}

/// A function with a body.
#[derive(Debug)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) line: usize,
    /// Lines from `fn` to the closing brace, both included.
    pub(super) lines: usize,
}

/// Path or identifier as written, such as `std::env::var`.
#[derive(Debug)]
pub(super) struct NamedPath {
    pub(super) path: String,
    pub(super) line: usize,
}

/// Error in a file that cannot be parsed as Rust.
#[derive(Debug)]
pub(super) struct NotRust {
    pub(super) line: usize,
    pub(super) message: String,
}

impl Source {
    /// Returns whether the line belongs to an item under `#[cfg(test)]`.
    pub(super) fn is_test(&self, line: usize) -> bool {
        self.test_lines.iter().any(|(first, last)| (*first..=*last).contains(&line))
    }
}

/// Reads the text of a Rust file.
pub(super) fn read(text: &str) -> Result<Source, NotRust> {
    let not_rust = |span: Span, error: &dyn std::fmt::Display| NotRust {
        line: span.start().line,
        message: format!("cannot be parsed as Rust: {error}"),
    };
    let file = syn::parse_file(text).map_err(|error| not_rust(error.span(), &error))?;
    let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| {
        let span = error.span();
        not_rust(span, &error)
    })?;
    let mut source = Source::default();
    source.visit_file(&file);
    collect_identifiers(tokens.clone(), &mut source.identifiers);
    collect_paths(tokens, "", &mut source.paths);
    Ok(source)
}

impl Source {
    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let line = signature.fn_token.span.start().line;
        let lines = body.span().end().line - line + 1;
        self.functions.push(Function { name: signature.ident.to_string(), line, lines });
    }
}

impl<'ast> Visit<'ast> for Source {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if item_attributes(item).iter().any(is_cfg_test) {
            let span = item.span();
            self.test_lines.push((span.start().line, span.end().line));
        }
        visit::visit_item(self, item);
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(body) = &item.default {
            self.function(&item.sig, body);
        }
        visit::visit_trait_item_fn(self, item);
    }
}

/// Returns the attributes of an item, for the kinds of items that `#[cfg(test)]` is put on.
fn item_attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Mod(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns whether the attribute is `#[cfg(test)]`, or has `test` in an `all(...)`. Code under
/// `not(test)` and `any(test, ...)` is also part of the product, so neither counts.
fn is_cfg_test(attribute: &syn::Attribute) -> bool {
    let syn::Meta::List(list) = &attribute.meta else { return false };
    list.path.is_ident("cfg") && demands_test(list.tokens.clone())
}

fn demands_test(condition: TokenStream) -> bool {
    let tokens: Vec<TokenTree> = condition.into_iter().collect();
    match tokens.as_slice() {
        [TokenTree::Ident(word)] => word == "test",
        [TokenTree::Ident(word), TokenTree::Group(group)] if word == "all" => {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            inner
                .split(|token| matches!(token, TokenTree::Punct(comma) if comma.as_char() == ','))
                .any(|part| demands_test(part.iter().cloned().collect()))
        }
        _ => false,
    }
}

fn collect_identifiers(tokens: TokenStream, identifiers: &mut Vec<NamedPath>) {
    for token in tokens {
        match token {
            TokenTree::Ident(word) => {
                let line = word.span().start().line;
                identifiers.push(NamedPath { path: word.to_string(), line });
            }
            TokenTree::Group(group) => collect_identifiers(group.stream(), identifiers),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Keywords that may precede a path that starts with `::`, as in `return ::std::fs::read`. Such a
/// keyword is not the path's first segment.
const BEFORE_A_PATH: [&str; 12] =
    ["as", "break", "dyn", "else", "if", "impl", "in", "match", "mut", "return", "use", "while"];

/// Appends every path in `tokens`. Outside of `use` groups, `prefix` is empty; inside, it is the
/// path before the brace, with its `::`.
fn collect_paths(tokens: TokenStream, prefix: &str, paths: &mut Vec<NamedPath>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        at += 1;
        match token {
            // `use a as b`: the word after `as` is a new name, not a path.
            TokenTree::Ident(word) if !prefix.is_empty() && word == "as" => at += 1,
            TokenTree::Ident(word) if BEFORE_A_PATH.iter().any(|before| word == before) => {}
            TokenTree::Ident(word) => {
                let line = word.span().start().line;
                let mut path = format!("{prefix}{word}");
                at = follow(&tokens, at, &mut path, paths);
                record(path, line, paths);
            }
            TokenTree::Punct(star) if !prefix.is_empty() && star.as_char() == '*' => {
                record(format!("{prefix}*"), star.span().start().line, paths);
            }
            TokenTree::Group(group) => collect_paths(group.stream(), "", paths),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// Appends to `path` the `::segment`s that begin at `at`; returns the index of the next token. A
/// group in braces ends the path: its paths go into `paths`, and `path` becomes empty.
fn follow(
    tokens: &[TokenTree],
    mut at: usize,
    path: &mut String,
    paths: &mut Vec<NamedPath>,
) -> usize {
    while is_path_separator(tokens, at) {
        match tokens.get(at + 2) {
            Some(TokenTree::Ident(segment)) => path.push_str(&format!("::{segment}")),
            Some(TokenTree::Punct(star)) if star.as_char() == '*' => path.push_str("::*"),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                collect_paths(group.stream(), &format!("{path}::"), paths);
                path.clear();
                return at + 3;
            }
            _ => return at + 2,
        }
        at += 3;
    }
    at
}

fn is_path_separator(tokens: &[TokenTree], at: usize) -> bool {
    let colon = |token: Option<&TokenTree>, joint: bool| {
        matches!(token, Some(TokenTree::Punct(punct))
            if punct.as_char() == ':' && (!joint || punct.spacing() == Spacing::Joint))
    };
    colon(tokens.get(at), true) && colon(tokens.get(at + 1), false)
}

fn record(path: String, line: usize, paths: &mut Vec<NamedPath>) {
    let path = path.strip_suffix("::self").map(str::to_owned).unwrap_or(path);
    if path.contains("::") {
        paths.push(NamedPath { path, line });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<String> {
        read(text).unwrap().paths.into_iter().map(|named| named.path).collect()
    }

    #[test]
    fn function_lengths_ignore_braces_in_strings_chars_and_comments() {
        let text = r##"
struct S;
impl S {
    fn method(&self) -> char {
        // } a brace in a comment
        /* } /* and } nested */ */
        let _raw = r#" "} "#;
        let _string = "}\"}";
        '}'
    }
}
trait T {
    fn required(&self);
    fn provided(&self) {
    }
}
fn outer<'a>(x: &'a u8) -> &'a u8 { fn inner() {} inner(); x }
"##;
        let source = read(text).unwrap();
        let found: Vec<(&str, usize, usize)> =
            source.functions.iter().map(|f| (f.name.as_str(), f.line, f.lines)).collect();
        let expected = [("method", 4, 7), ("provided", 14, 2), ("outer", 17, 1), ("inner", 17, 1)];
        assert_eq!(found, expected);
    }

    #[test]
    fn use_groups_are_spelled_out() {
        let text = "use std::{env::{self, var as v}, time::*, fs}; use ::core::mem;";
        let expected = ["std::env", "std::env::var", "std::time::*", "std::fs", "core::mem"];
        assert_eq!(paths(text), expected);
    }

    #[test]
    fn paths_are_found_in_macros_but_not_in_strings_or_comments() {
        let text =
            "fn f() { assert!(std::env::var(\"a::b\").is_ok()); } // c::d\n/// e::f\nfn g() {}";
        assert_eq!(paths(text), ["std::env::var"]);
        assert_eq!(paths("fn f(a: ::x::Y) { let b = a as u8; }"), ["x::Y"]);
        assert_eq!(paths("type A = Vec<std::fs::File>;"), ["std::fs::File"]);
        assert_eq!(paths("fn f() { return ::std::fs::read; }"), ["std::fs::read"]);
    }

    #[test]
    fn lines_under_cfg_test_are_test_lines() {
        let text = "fn a() {}\n#[cfg(test)]\nmod tests {\n fn b() {}\n}\n\
                    #[cfg(not(test))]\nfn c() {}\n\
                    #[cfg(all(unix, test))]\nfn d() {}\n#[cfg(any(test, unix))]\nfn e() {}\n";
        let source = read(text).unwrap();
        let tests: Vec<usize> = (1..=11).filter(|line| source.is_test(*line)).collect();
        assert_eq!(tests, [2, 3, 4, 5, 8, 9]);
    }

    #[test]
    fn the_error_for_a_file_that_is_not_rust_has_the_line() {
        assert_eq!(read("fn a() {}\nfn b( {}\n").unwrap_err().line, 2);
    }
}
