//! Tables that read well on a terminal and are Markdown at the same time.

/// Returns a Markdown table with aligned columns.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let cells = cells.zip(&widths).map(|(cell, width)| format!(" {cell:width$} |"));
        format!("|{}\n", cells.collect::<String>())
    };
    let mut text = line(&mut head.iter().copied());
    let rule: String = widths.iter().map(|width| format!("{}|", "-".repeat(width + 2))).collect();
    text.push_str(&format!("|{rule}\n"));
    for row in rows {
        text.push_str(&line(&mut row.iter().map(String::as_str)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["x".to_owned(), "long cell".to_owned()]];
        let expected = "| one | b         |\n|-----|-----------|\n| x   | long cell |\n";
        assert_eq!(table(&["one", "b"], &rows), expected);
    }
}
