# What every target of this project is compiled with.
add_library(qpair_options INTERFACE)
target_compile_features(qpair_options INTERFACE cxx_std_20)
target_compile_options(qpair_options INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Wnon-virtual-dtor -Werror -fno-omit-frame-pointer)
target_include_directories(qpair_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR})

set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(QPAIR_SANITIZE)
  # What they insert misleads the compiler's warnings about flow; the other builds are those without any.
  target_compile_options(qpair_options INTERFACE -fsanitize=${QPAIR_SANITIZE} -fno-sanitize-recover=all -Wno-error)
  target_link_options(qpair_options INTERFACE -fsanitize=${QPAIR_SANITIZE})
endif()

find_program(QPAIR_CCACHE ccache)
if(QPAIR_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${QPAIR_CCACHE})
endif()

# qpair_layer(NAME FOLDER DEPENDS…): one folder of sources as a static library.
function(qpair_layer name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  if(NOT sources)
    message(FATAL_ERROR "${name}: no sources in ${folder}")
  endif()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PRIVATE qpair_options PUBLIC ${ARGN})
endfunction()
