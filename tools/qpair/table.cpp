#include "table.hpp"

#include <algorithm>
#include <cassert>

namespace qpair::tool {

std::size_t display_width(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xc0) != 0x80; }));
}

void Table::add(Row row) {
  assert(row.size() == rows_.front().size());
  rows_.push_back(std::move(row));
}

std::string Table::to_string() const {
  std::vector<std::size_t> widths(rows_.front().size());
  for (const Row& row : rows_) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      widths[column] = std::max(widths[column], display_width(row[column]));
    }
  }
  std::string text;
  for (const Row& row : rows_) {
    for (std::size_t column = 0; column < row.size(); ++column) {
      const std::string padding(widths[column] - display_width(row[column]), ' ');
      const bool last = column + 1 == row.size();
      if (column == 0) {
        text += row[column] + (last ? "" : padding);
      } else {
        text += "  " + padding + row[column];
      }
    }
    text += '\n';
  }
  return text;
}

}  // namespace qpair::tool
