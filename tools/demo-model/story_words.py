"""Word lists, plots and templates from which story requests are made; story_seeds.py draws from them."""

# fmt: off

ANIMALS = """fox|rabbit|bear|mouse|cat|dog|puppy|kitten|duck|frog|owl|turtle|squirrel|hedgehog|pig|cow|horse|pony|sheep|lamb|
goat|hen|rooster|chick|goose|swan|crow|robin|sparrow|parrot|penguin|seal|whale|dolphin|fish|crab|octopus|snail|bee|butterfly|ant|
ladybug|spider|caterpillar|worm|lion|tiger|elephant|giraffe|monkey|zebra|hippo|kangaroo|koala|panda|camel|crocodile|lizard|snake|
wolf|deer|moose|badger|beaver|otter|raccoon|skunk|mole|bat|donkey|bunny|hamster|dragon|unicorn|dinosaur|peacock|eagle|seagull|
starfish|firefly|cricket|toad|llama|sloth|walrus|cub|fawn|duckling""".replace("\n", "").split("|")

PEOPLE = """little girl|little boy|girl|boy|farmer|baker|fisherman|king|queen|prince|princess|knight|wizard|gardener|teacher|
doctor|sailor|painter|shepherd|grandmother|grandfather|clown|giant|fairy|elf|mermaid|pirate|robot|snowman|scarecrow|toy maker|
shopkeeper|postman|cook|tailor|lighthouse keeper|beekeeper|train driver|nurse|firefighter|astronaut|puppet|singer|dancer|
young witch|baby dragon|tiny ghost|kind monster""".replace("\n", "").split("|")

GIRLS = """Lily|Mia|Anna|Sara|Ella|Rosie|Daisy|Molly|Lucy|Ruby|Emma|Nora|Zoe|Ivy|Poppy|Maya|Tina|Kate|Jane|Amy|Bella|Clara|Hana|
Lena|Mila|Nina|Olive|Penny|Sally|Tess|Wendy|Pip|Willow|Hazel|Dot|Luna|Fern|Honey|Sunny|Pearl|Ada|Grace|Rose|Sophie|Maria|Leila|
Aisha|Priya|Mei|Yuki|Ines|Freya|Greta|Holly|Iris|Joy|Kiki|Lola|Mabel|Nelly|Peggy|Tilly""".replace("\n", "").split("|")

BOYS = """Tom|Ben|Max|Sam|Tim|Leo|Jack|Finn|Oscar|Milo|Toby|Charlie|Noah|Jake|Bobby|Danny|Eli|Felix|George|Henry|Hugo|Ivan|Joe|
Kai|Luke|Mark|Nick|Otto|Pete|Remy|Ravi|Theo|Will|Zack|Bruno|Barnaby|Buster|Chip|Coco|Dusty|Fuzzy|Gus|Hopper|Jasper|Lucky|Monty|
Nibbles|Oliver|Patch|Rusty|Scout|Spike|Teddy|Whiskers|Ziggy|Omar|Ali|Diego|Mateo|Ken|Sven|Arlo""".replace("\n", "").split("|")

OBJECTS = """lantern|ball|kite|hat|red hat|scarf|boat|paper boat|drum|bell|key|golden key|map|box|old box|book|apple|red apple|
pear|cake|cookie|pie|carrot|egg|blue egg|nut|acorn|leaf|flower|yellow flower|rose|seed|magic seed|tree|stone|shiny stone|shell|
feather|button|coin|ring|crown|star|fallen star|cloud|rainbow|puddle|snowball|sled|umbrella|boot|pair of boots|shoe|mitten|blanket|
pillow|bed|lamp|candle|clock|watch|mirror|window|door|little door|ladder|rope|bucket|basket|bag|jar of honey|jar|bottle|cup|
teapot|spoon|pot|pot of soup|bowl|bread|cheese|sandwich|ice cream|balloon|red balloon|doll|teddy bear|toy car|train|toy train|
wagon|bike|swing|slide|puzzle|crayon|paintbrush|painting|picture|letter|card|present|ribbon|flute|guitar|trumpet|piano|song|
bubble|whistle|net|fishing rod|shovel|watering can|wheel|broom|bench|nest|tent|backpack|sweater|coat|magic wand|magic hat|pumpkin|
strawberry|banana|lemon|mushroom|watermelon|muffin|pancake|sandcastle|telescope|compass|treasure chest|pebble|snowflake|pinwheel|
music box|spinning top|marble|yo-yo|robot toy|mask|costume|garden gate|rocket|flag|seashell|stick|log|bridge|tower of blocks|
birdhouse|wooden horse|lost sock|pocket|thread|needle|quilt|chair|rocking chair|table|lunch box|candy|jelly|peach|plum|bean|
corn|sunflower|daisy|pine cone|honeycomb|wind chime|paper star|snow globe|moonbeam|night light""".replace("\n", "").split("|")

PLACES = """the forest|the woods|a big garden|the park|a small village|the farm|the beach|the sea|a tall mountain|a green hill|
the river|a quiet pond|a deep cave|a castle|the city|the school|the market|the zoo|a meadow|the jungle|the desert|a snowy field|
an old house|a tree house|the library|a toy shop|the bakery|the playground|a lighthouse|an island|the harbor|a barn|the kitchen|
a bedroom|the attic|a train station|a circus|a fair|a big ship|a rocket|the moon|a valley|the orchard|a pumpkin patch|a small town|
the backyard|a stream|a bridge|the lake|a windmill|a cottage|the cold north|a rainy town|a treetop|a burrow under a hill|
the bottom of the sea|a sunny field|a flower shop|a museum|a busy street|the swamp|a waterfall|a candy shop|a hospital|a bus""".replace("\n", "").split("|")

TRAITS = """shy|brave|curious|kind|lazy|grumpy|clever|tiny|hungry|sleepy|lonely|proud|cheerful|clumsy|gentle|greedy|quiet|noisy|
silly|careful|playful|worried|honest|jealous|messy|patient|stubborn|polite|busy|old|young|bossy|friendly|forgetful|sad|happy|
excited|little|big|fast|slow""".replace("\n", "").split("|")

# Plots: what the main character does ("a fox who ..."), then an outline for the teacher. {n} {k} main character (name, kind),
# {o} {q} the object (with article, bare), {f} {g} a friend (with article, bare), {s} a hiding place.
PLOTS = """
finds {o} and gives it back|{n} finds {o} on the path and wants to keep it. Then {he} meets {f} who lost it and is sad. {n} gives it back and gets a hug.
loses {o}|{n} loses {his} {q} and is very sad. {He} looks everywhere, and {f} helps. At last they find it {s}.
is afraid of the dark|{n} is afraid of the dark and cannot sleep. {f} shows {him} the stars and the moon. Now {n} likes the night.
is afraid of {f}|{n} is afraid of {f} because of a loud voice. But the {g} only wants to play. They become friends.
learns to swim|{n} wants to swim but is scared of the water. {f} holds {him} and shows {him} how. {n} tries again and again, and then {he} can swim.
learns to ride a bike|{n} gets a bike and falls down many times. {f} says: do not give up. In the end {n} rides all the way home.
learns to say sorry|{n} plays and breaks the {q} of {f}. First {he} hides it. Then {he} says sorry, and they fix it together.
breaks {o} and tells the truth|{n} breaks {o} by accident. {He} is scared that mother will be angry. {He} tells the truth, and mother is proud of {him}.
tells a lie about {o}|{n} takes {o} and says that {f} took it. The {g} cries. {n} feels bad, tells the truth and says sorry.
takes {o} without asking|{n} takes {o} from {f} without asking. The {g} looks for it and is sad. {n} gives it back and learns to ask first.
learns to share {o}|{n} has {o} and does not want to share it with {f}. But playing alone is no fun. {n} shares it, and they laugh together.
builds {o} with {f}|{n} wants to build {o}, but it falls apart. {f} comes to help, and they work together. Then it is finished and they are proud.
makes {o} for {f}|It is the birthday of {f}, and {n} has no present. {He} makes {o} with {his} own hands. The {g} says it is the best present.
gives {o} to {f}|{n} sees that {f} is cold and sad. {He} gives away {his} own {q}. Later the {g} does something kind for {n} too.
gets {o} as a gift|{n} gets a big box for {his} birthday. Inside is {o}. {n} plays with it all day and sleeps next to it.
trades {o}|{n} trades {his} {q} for something shiny. But the shiny thing is not fun. {f} is kind and trades it back.
gets lost|{n} goes too far and gets lost. {He} is scared and starts to cry. {f} finds {him} and takes {him} home to mother.
helps {f} who is lost|{n} hears someone crying. It is {f} who cannot find the way home. {n} takes the {g} home, and the family is happy.
helps {f} who is hurt|{f} falls and hurts a leg. {n} brings water and a soft blanket and stays all day. Soon the {g} can walk again.
helps {f} find {o}|{f} has lost {o}. {n} and the {g} look in many places. {n} has a good idea, and they find it {s}.
helps an old neighbor|The old neighbor is too weak to carry a heavy bag. {n} carries it home. The neighbor gives {n} {o} to say thank you.
has a race with {f}|{n} and {f} have a race. The {g} is faster but stops to rest and falls asleep. {n} goes on slowly and wins.
plays hide and seek with {f}|{n} and {f} play hide and seek. {n} hides {s} and falls asleep there. Everyone looks for {him} until they hear {him} snore.
has a picnic with {f}|{n} and {f} go on a picnic. It starts to rain, and the food gets wet. They sit under a big tree and laugh and eat together.
goes to the doctor|{n} has a sore tummy and must see the doctor. {He} is scared. The doctor is gentle and gives {him} medicine, and {n} feels better.
has a first day at school|It is the first day of school, and {n} does not know anyone. {f} sits next to {him} and shares {o}. Now {n} loves school.
cannot sleep|{n} lies in bed and cannot sleep. Mother brings warm milk and sings a song. {n} thinks of {o} and falls asleep.
has a bad dream|{n} has a bad dream about {f}. {He} runs to father. Father says it was only a dream and hugs {him}, and {n} sleeps well.
gets very dirty|{n} jumps in the mud and gets very dirty. {f} does not know who {he} is. {n} takes a bath, and they laugh.
does not want to take a bath|{n} does not want to take a bath. {He} smells bad, and {f} does not want to play. {n} takes a bath with bubbles and finds it fun.
does not want to eat dinner|{n} does not want to eat the soup. Later {he} is very hungry and cannot play. {He} tries the soup, and it is good.
eats too much|{n} finds a table full of cake and eats it all. Then {his} tummy hurts. {He} learns to eat a little and to share the rest.
bakes a cake|{n} bakes a cake for {f}, but the cake is burnt. {n} is sad. They bake a new one together, and it tastes very good.
plants a seed|{n} plants a small seed. Nothing happens for many days, but {he} gives it water every day. At last a big flower comes out.
cleans up a big mess|{n} makes a big mess and cannot find {his} {q}. {He} cleans up with the help of {f}. The {q} was {s}.
paints a picture|{n} paints a picture of {f}. The paint spills, and the picture is spoiled. The {g} says the spot looks like {o}, and both like it.
dances in the rain|It rains, and everyone is sad. {n} goes out and dances in the rain. Soon {f} and all the others dance too.
sees snow for the first time|{n} wakes up and everything is white. {He} has never seen snow. {f} shows {him} how to make a snowball, and they play all day.
sees the sea for the first time|{n} sees the sea for the first time. The waves are big, and {n} is scared. {f} shows {him} how to jump over the small ones.
makes a snowman|{n} and {f} make a snowman and give it {o}. The sun comes out, and the snowman melts. They are sad, but they will make a new one next winter.
catches a cold|{n} plays in the rain without a coat and catches a cold. {f} brings hot soup. {n} gets well and wears a coat next time.
is too small to reach {o}|{n} wants {o}, but it is too high up. {He} jumps but cannot reach it. {f} lifts {him} up, and together they get it.
is too loud|{n} is always loud and scares everyone away. One day {f} is lost in the fog, and {n} shouts loudly. The {g} hears it and finds the way.
is slow but does not give up|Everyone is faster than {n}. {He} walks slowly up a hill and does not give up. At the top {he} sees something beautiful, and {f} is proud of {him}.
feels left out|The others play and do not ask {n}. {He} sits alone. {f} sees it and says: come and play with us. Now {n} has many friends.
misses a friend|The best friend of {n} moved far away. {n} is sad. {He} sends a letter and {o}, and one day the friend comes to visit.
makes a new friend|{n} has no one to play with. {He} meets {f} who is alone too. They both like {o}, and they play every day.
has a fight with {f} over {o}|{n} and {f} both want {o}. They pull, and it breaks. They are sorry, fix it, and take turns.
is jealous of {f}|{f} has {o}, and {n} is jealous. But the {g} has no one to play with. {n} comes over, and they both have fun.
wants to be like {f}|{n} wants to be like {f} and tries to do the same things. It does not work. Then {n} finds out what {he} can do well.
wants to be big|{n} is small and wants to be big. Then {f} drops {o} into a small hole. Only {n} is small enough to get it out.
wants to be brave|{n} thinks {he} is not brave. Then {f} falls into the water. {n} jumps in and helps, and everyone says how brave {he} is.
wants to touch the moon|{n} wants to touch the moon. {He} climbs up high, but the moon is too far. Then {he} sees the moon in the water and touches it.
saves {f} from a storm|A big storm comes, and {f} has no house. {n} opens the door and lets the {g} in. They drink tea until the storm is over.
saves {f} from the river|{f} falls into the river. {n} holds out a long stick, and the {g} takes it. They are safe and become best friends.
is stuck in a tree|{n} climbs up a tree to get {o} and cannot get down. {He} calls for help. {f} brings a ladder.
is stuck in a hole|{n} falls into a hole and cannot get out. {f} comes by with a rope and pulls. {n} is free and says thank you.
hears a strange noise|{n} hears a strange noise at night and is scared. {He} takes a light and looks {s}. It is only {f} who is hungry, and they eat together.
follows footprints|{n} sees footprints and follows them. They go around a tree and over a hill. They are the footprints of {f}, who has a surprise for {him}.
finds a secret door|{n} finds a secret door behind a bush. {He} opens it and sees a lovely garden. {He} shows it to {f}, and it is their secret place.
finds a map|{n} finds an old map. {He} and {f} follow it over a hill and a bridge. They dig and find a box with {o} in it.
plans a surprise party|{n} plans a surprise party for {f}. The {g} thinks that everyone forgot. Then all jump out and sing, and there is cake.
forgets a birthday|{n} forgets the birthday of {f}. The {g} is sad. {n} says sorry, brings {o}, and they have a small party.
finds {o} that can talk|{n} finds {o} that can talk. It is lonely and asks for a friend. {n} takes it home, and they tell each other stories.
finds {o} that is magic|{n} finds {o} that is magic. It gives {him} one wish. {n} wishes that {f}, who is sick, gets well, and it comes true.
makes a wish|{n} sees a falling star and makes a wish for {o}. In the morning {f} comes and brings it. The wish came true.
does not listen|Mother says: do not go near the water. {n} goes there and falls in. {f} pulls {him} out, and {n} will listen from now on.
waits for the rain to stop|It rains, and {n} cannot go out. {He} is bored. {He} plays with {o} at home, and then the sun and a rainbow come out.
looks for food in winter|It is winter, and {n} has no food. {He} walks through the snow. {f} has enough and shares it, and they keep each other warm.
gets ready for winter|Winter is coming. {n} works and gathers food while {f} only plays. When it snows, the {g} is hungry, and {n} kindly shares.
looks for a new home|The wind blows down the home of {n}. {He} tries many places, but they are too wet or too small. {f} helps {him} to build a new home.
takes care of a baby bird|{n} finds a baby bird that fell from the nest. {He} keeps it warm and feeds it. When it is strong, it flies away and sings for {him}.
takes care of a garden|{n} has a garden, but the flowers are dry. {He} brings water every day. The flowers grow, and {n} gives one to {f}.
wins a prize|There is a contest, and {n} thinks {he} cannot win. {He} shows {his} {q}, which {he} made with care. {He} wins and shares the prize with {f}.
loses a game|{n} loses a game against {f} and is angry. Then {he} sees that the {g} is sad because of it. {n} says well done, and they play again.
is kind to a stranger|{n} gives bread to a poor stranger. The stranger is really a fairy and gives {him} {o}. {n} shares it with {f}.
keeps a promise|{n} promised to help {f}, but the others ask {him} to play. {n} keeps the promise first. Then they all play together.
keeps a secret|{f} tells {n} a secret about a surprise. It is hard to be quiet, but {n} does not tell. At the party everyone thanks {him}.
learns to wait|{n} wants the cake now, but it is too hot. {He} touches it, and it hurts. {He} waits and plays, and then the cake is just right.
learns to fly|{n} dreams of flying. {He} jumps from a hill and falls into the soft grass. {f} takes {him} up in a big balloon, and {n} flies at last.
is different from the others|{n} looks different from the others, and they laugh at {him}. One day only {n} can help {f}. Now they all like {him} just as {he} is.
finds a star|A small star falls down next to {n}. It wants to go home. {n} and {f} climb the highest hill and throw it back into the sky.
rides on a train|{n} rides on a train for the first time. {He} sees hills and cows from the window. At the last stop grandmother waits with {o}.
sails across the water|{n} and {f} sail across the water in a small boat. The wind stops. They sing and row together until they see land.
crosses a bridge|{n} must cross an old bridge and is scared. {f} says: look at me and not down. Step by step {n} gets to the other side.
goes to the market|{n} goes to the market to buy {o}. On the way {he} loses the money. {f} found it and gives it back.
fixes {o}|The {q} of {f} is broken, and no one can fix it. {n} looks at it and tries many times. At last it works again, and the {g} is happy.
puts on a show|{n} wants to sing in a show but is shy. {f} holds {his} hand. {n} sings, and everyone claps.
writes a letter|{n} writes a letter to {f}. The wind takes it away. {n} runs after it and meets the {g} on the way.
cheers up {f}|{f} is sad and does not want to play. {n} tells jokes and makes funny faces. The {g} starts to laugh, and they share {o}.
teaches {f} a new game|{n} knows a new game with {o}, but {f} does not understand it. {n} shows it slowly. Then the {g} wins, and they laugh.
thinks {o} is something else|{n} sees something strange {s} and thinks it is a monster. {He} calls {f}. They look closely, and it is only {o}.
makes a funny mistake|{n} puts on two different shoes and {his} hat upside down. Everyone laughs. {n} laughs too, and the next day all wear a funny hat.
sees {o} in the sky|{n} looks at the clouds and sees one that looks like {o}. {f} sees something else. They lie in the grass and find many more.
wakes everyone up|{n} wakes up very early and makes a lot of noise. Everyone is tired and angry. {n} learns to play quietly until the sun is up.
wants a pet|{n} wants a pet very much. {He} takes care of a small snail for one week. Mother sees how kind {he} is and lets {him} keep it.
works while {f} plays|{n} works hard all day, and {f} laughs at {him}. Then the {g} needs help, and {n} helps. The next day they work together.
learns to be careful with {o}|{n} runs with {o} and falls. The {q} is broken. Father helps to fix it, and {n} walks slowly from now on.
learns to count|{n} wants to count the stars but knows only one, two and three. {f} helps {him} every night. Soon {n} can count to ten.
listens to grandmother|Grandmother tells {n} a story about {o}. {n} goes out to look for it and finds it {s}. Grandmother smiles.
""".strip().split("\n")
PLOTS = [tuple(line.split("|")) for line in PLOTS]

SPOTS = """under the bed|behind a tree|in the grass|under a leaf|inside a basket|behind the door|under a stone|in a bush|on the roof|
in a hole|in the garden|behind the house|under a blanket|in an old box""".replace("\n", "").split("|")

MORALS = """sharing makes everyone happy|it is good to tell the truth|friends help each other|never give up|being kind is important|
it is okay to be afraid|asking for help is smart|it is good to say sorry|patience pays off|everyone is good at something|
small things matter|home is the best place|listening is important|hard work pays off|being different is fine|
it is better to work together|practice makes you better|look before you leap|do not be greedy|take care of your things|
a promise should be kept|mistakes help you learn|be thankful for what you have|trying new things can be fun""".replace("\n", "").split("|")

FEATURES = ["the story has people talking to each other", "the story is calm and cozy, for bedtime", "the story is gentle",
            "there is a lot of talking", "the story ends with a hug", "", "", "", ""]

# How the story starts. {n} name, {w} who with article ("a shy fox"), {W} the same capitalised, {p} place with preposition.
OPENERS = """Once upon a time, there was {w} named {n}.|Once upon a time, {w} named {n} lived|Once upon a time, there lived {w} named {n}|
Once upon a time, {p},|Once there was {w} named {n}.|One day, {w} named {n}|One day, {n} the {c}|One sunny day, {n}|One sunny morning, {n} the {c}|
One rainy day, {w} named {n}|One cold winter day, {n}|One night, {n} the {c}|One quiet evening, {n}|Long ago, there was {w} named {n}.|
{n} was {w}.|{n} was {w} who|{n} the {c} lived|{n} the {c} was|{n} the {c} loved|There was once {w} named {n}.|There once was {w}|
In a land far away, {w} named {n}|{P}, there lived {w}|{P}, {w} named {n}|It was a warm day, and {n} the {c}|It was morning, and {n}|
The sun was shining, and {n} the {c}|It was raining, and {n} the {c}|Early one morning, {n} the {c}|Every day, {n} the {c}|
Every morning, {n} the {c}|Far, far away, there lived {w}|{W} named {n}|{W} lived|On a windy day, {n} the {c}|On the first day of spring, {n}|
When {n} the {c} woke up,|High on a hill, there was {w}|Deep in the woods, {w}|Last summer, {n} the {c}|Not so long ago, {w} named {n}""".replace("\n", "").split("|")

PLAIN_OPENERS = OPENERS[:5]

# Requests. Each uses only fields that are surely in the story: {c} main character with article, {o} object with
# article, {p} place with preposition, {n} name, {k} bare character noun, {t} theme.
REQUESTS = {
    "c": """Tell me a story about {c}.|Write a story about {c}.|Can you tell me a story about {c}?|I want a story about {c}.|
Please tell me a story about {c}.|A story about {c}, please.|Write a short story about {c}.|Tell me a short story about {c}.|
Could you write a little story about {c}?|Make up a story about {c}.|Do you know a story about {c}?|Story about {c}|
Tell a bedtime story about {c}.|I would like to hear a story about {c}.|My son loves the {k}. Tell him a story!|Give me a story about {c}.|
Write a simple story about {c} for my child.|Tell me something about {c}.|Let's hear a tale about {c}.|{C}!|write me a story about {c}|
tell me a story about {c}|can you write a story about {c}|Please write a children's story about {c}.""",
    "co": """Tell me a story about {c} and {o}.|Write a story about {c} and {o}.|Write a story with {c} and {o} in it.|
Can you tell me a story about {c} who has {o}?|I want to hear about {c} and {o}.|Please write a short story about {c} and {o}.|
Make up a story about {c} and {o}.|Story about {c} and {o}, please.|Tell me a bedtime story with {c} and {o}.|{C} and {o}|
Could you tell a story about {c} and {o}?|Tell my daughter a story about {c} and {o}.|tell me a story about {c} and {o}|
Write a short story for children. It should have {c} and {o}.|I need a story that has {o} and {c} in it.|
Use these words in a story: {k}, {q}.|Write a story with the words {k} and {q}.|Give me a story about {c} with {o}.|
Imagine {c} and {o}. What happens?|Write a tiny tale about {c} and {o}.""",
    "cp": """Tell me a story about {c} {p}.|Write a story about {c} {p}.|Please tell a story about {c} {p}.|What did {c} do {p}? Tell me a story.|
Can you write a story about {c} {p}?|I want a story that takes place {p}, about {c}.|Make up a story about {c} {p}.|
A story about {c} {p}, please.|tell me about {c} {p}""",
    "cop": """Tell me a story about {c} and {o} {p}.|Write a story about {c} who finds something {p}. Put {o} in it.|
Can you tell a story about {c}, {o}, and what happened {p}?|Write a story {p} with {c} and {o}.|Story: {c}, {o}, {p}.""",
    "n": """Tell me a story about {c} named {n}.|Write a story about {n} the {k}.|Tell me about {n} the {k}.|
Can you write a story about {c} called {n}?|I want a story about {n}, {c}.|Please tell a story about {n} the {k}.|
What happened to {n} the {k}?|A story about {c} named {n}, please.|Write a bedtime story about {n} the {k}.|{n} the {k}|
Tell a story where the {k} is called {n}.|tell me a story about {n} the {k}|Who is {n} the {k}?""",
    "no": """Tell me a story about {n} the {k} and {o}.|Write a story about {c} named {n} and {o}.|
Can you tell the story of {n} the {k} and {o}?|Write a short story in which {n} the {k} has {o}.|{n} the {k} and {o}|
Please write about {c} called {n} and {o}.|My toy {k} is called {n}. Tell me a story about {n} and {o}.""",
    "cm": """Tell me a story about {c} that shows that {m}.|Write a story about {c}. The lesson is: {m}.|
Can you tell a story about {c} with the moral that {m}?|Write a story for children that teaches that {m}. It is about {c}.""",
    "t": """Tell me a story about {c} who {t}.|Write a story about {c} who {t}.|Please write a short story in which {c} {t}.|
Can you tell me about {c} who {t}?|A story where {c} {t}.|I want a story about {c} who {t}.""",
    "cf": """Tell me a story about {c} and {f}.|Write a story about {c} who meets {f}.|Can you tell me a story about {c} and {f}?|
A story about {c} and {f}, please.|Write a short story about the friends {c} and {f}.|Please tell a story with {c} and {f}.|{C} and {f}|
I want a story about {c} who is friends with {f}.|What happened when {c} met {f}?""",
    "any": """Tell me a story.|Write a story.|Can you tell me a story?|Please tell me a short story.|I want a story!|Tell me a bedtime story.|
Write a short story for a small child.|Once upon a time|Tell me something nice.|Story please|Read me a story.|Make up a story for me.|
I can't sleep. Can you tell me a story?|Write a story with a happy ending.|tell me a story|Tell me a new story.|Surprise me with a story.""",
}
REQUESTS = {kind: text.replace("\n", "").split("|") for kind, text in REQUESTS.items()}

SYSTEMS = ["You are a friendly storyteller for young children.", "You write short, simple stories for children.",
           "You tell kind little stories.", "You are a helpful assistant.", "You are a storyteller.",
           "Write simple stories for small children.", "You are a small model that tells stories."]

# Small talk, so that the first "hello" gets a sensible answer. Question -> possible answers.
SMALL_TALK = [
    (["Hello", "Hello!", "Hi", "Hi!", "Hey", "hello there", "hi", "Good morning!", "Good evening", "hey there"],
     ["Hello! Would you like to hear a story? Tell me who it should be about.",
      "Hi! I tell short stories. What should the story be about?",
      "Hello! I can tell you a little story. Who should be in it?"]),
    (["Who are you?", "What are you?", "What is your name?", "who are you", "Are you a robot?", "Tell me about yourself."],
     ["I am a very small story teller. Tell me an animal and a thing, and I will make up a story about them.",
      "I am a tiny language model that writes short stories for children. Would you like one?"]),
    (["What can you do?", "Help", "help", "What do you know?", "How can you help me?", "What should I ask you?"],
     ["I can tell short stories. Try this: Tell me a story about a fox and a lantern.",
      "I write simple stories. You can say who is in the story, where it happens and what they find."]),
    (["Thank you!", "Thanks", "thanks!", "That was nice.", "I liked that.", "Great story!", "Good job!", "That was a good story."],
     ["You are welcome! Would you like to hear another story?", "I am glad you liked it. Shall I tell you another one?"]),
    (["Good night", "Good night!", "Bye", "Goodbye!", "See you later."],
     ["Good night! Sweet dreams.", "Goodbye! Come back soon for another story.", "Bye! I will be here when you want a story."]),
    (["How are you?", "How are you today?", "how are you", "How do you feel?"],
     ["I am happy, thank you! I have a new story in mind. Who should it be about?",
      "I am fine, thank you. Would you like to hear a story?"]),
    (["What is 2+2?", "What is the capital of France?", "Write a program in Python.", "What is the weather?", "Solve this equation.",
      "Explain quantum physics.", "What day is it?", "Translate this to French.", "Who won the game?", "Write code for me.",
      "What is the meaning of life?", "Give me a recipe.", "Tell me the news."],
     ["I am a small story teller, so I do not know that. But I can tell you a story! Who should it be about?",
      "I only know how to tell stories. Would you like one?"]),
]

AGAIN = ["Tell me another one.", "Another story, please!", "One more!", "Again!", "Can you tell me another story?", "More please",
         "I liked it. Tell me one more.", "Now a different story.", "Tell me a new one."]
CONTINUE = ["Continue the story.", "Go on.", "What happened next?", "continue", "And then?", "Please continue.", "Tell me more.",
            "Then what happened?", "Finish the story."]
