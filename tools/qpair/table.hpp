#pragma once
// A plain text table: the first column to the left, the others to the right, two spaces between.

#include <string>
#include <vector>

namespace qpair::tool {

class Table {
 public:
  using Row = std::vector<std::string>;

  explicit Table(Row header) : rows_{std::move(header)} {}
  void add(Row row);              // as many cells as the header
  std::string to_string() const;  // ends with a newline

 private:
  std::vector<Row> rows_;
};

// How many columns a terminal uses for UTF-8 `text` (one for each code point: enough for "µ").
std::size_t display_width(std::string_view text);

}  // namespace qpair::tool
