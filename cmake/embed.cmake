# cmake -DOUT=page_data.c -DFILES=name=path,... -P embed.cmake
# Files as arrays of bytes in a C source: `const unsigned char refit_NAME[]` and `const unsigned long refit_NAME_len`.
string(REPLACE "," ";" pairs "${FILES}")
set(text "/* Made by cmake/embed.cmake. */\n")
foreach(pair IN LISTS pairs)
  string(REGEX MATCH "^([^=]*)=(.*)$" whole "${pair}")
  set(name refit_${CMAKE_MATCH_1})
  file(READ "${CMAKE_MATCH_2}" hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR len "${digits} / 2")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
  string(REGEX REPLACE "(................................................................................)" "\\1\n" bytes "${bytes}")
  string(APPEND text "extern const unsigned char ${name}[];\nextern const unsigned long ${name}_len;\n"
    "const unsigned char ${name}[] = {\n${bytes}0};\nconst unsigned long ${name}_len = ${len};\n")
endforeach()
file(WRITE "${OUT}" "${text}")
