// Attributes of the tool call tags. Internal to text/.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace fathom::text {

/// The name in ` name="N"`; empty when that is not what `attributes` says.
std::string read_invoke_tag(std::string_view attributes);

struct ParameterTag {
  std::string name;
  bool string = false;
};

/// ` name="P" string="true|false"`, in either order, with either quote, with any case of the flag. Nothing when
/// something is missing or there is more.
std::optional<ParameterTag> read_parameter_tag(std::string_view attributes);

}  // namespace fathom::text
